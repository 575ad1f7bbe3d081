// Attention of decoding: first every token's key and value go to the cache, then every token attends. Tokens
// are few and caches long, so that this is bound by reading the cache: no blocks of queries.
#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>
#include <vector>

#include "block_scale.h"
#include "cpu/attention_tiles.h"
#include "cpu/cached_rows.h"
#include "cpu/rows.h"
#include "octet/base/error.h"
#include "octet/ops/attention.h"

namespace octet::ops::cpu {

void cached_attention(const CachedAttentionArgs& args);

namespace {

template <typename T, typename U>
OCTET_SIMD float dot(const T* a, const U* b, std::int64_t count) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t i = 0; i < count; ++i) sum += simd::load(a[i]) * simd::load(b[i]);
  return sum;
}

template <typename T>
OCTET_SIMD void add_scaled(float* sum, const T* v, float weight, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) sum[i] = simd::fmadd(weight, simd::load(v[i]), sum[i]);
}

OCTET_SIMD void scale_row(float* row, float factor, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] *= factor;
}

template <typename T>
OCTET_SIMD void store_row(const float* row, float factor, T* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) simd::store(to[i], row[i] * factor);
}

OCTET_SIMD void exp_row(float* row, float maximum, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) row[i] = simd::exp(row[i] - maximum);
}

OCTET_SIMD void decode_row(const std::uint8_t* codes, float scale, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(decode_fp8<E4M3>(codes[i])) * scale;
}

/// Columns of a head whose sums of values, or decoded keys, are at hand at once.
constexpr std::int64_t kMostColumns = 256;

/// Keys that are read one after the other before their scores are used.
constexpr std::int64_t kPiece = 64;

/// Keys, or values, of one KV head, in T.
template <typename T>
struct Rows {
  const T* data;
  std::int64_t stride;
  float product(const T* query, std::int64_t j, std::int64_t head_dim) const {
    return dot(query, data + j * stride, head_dim);
  }
  /// Adds the columns [from, from + width) of row j, by their weight.
  void add(float* sum, std::int64_t j, std::int64_t from, float weight, std::int64_t width) const {
    add_scaled(sum, data + j * stride + from, weight, width);
  }
};

/// The same in E4M3.
struct Fp8Rows {
  const std::uint8_t* codes;
  const float* scale_inv;  ///< of row 0
  std::int64_t stride, heads;
  template <typename T>
  float product(const T* query, std::int64_t j, std::int64_t head_dim) const {
    float sum = 0.0f, room[kMostColumns];
    for (std::int64_t from = 0; from < head_dim; from += kMostColumns) {
      const std::int64_t width = std::min(kMostColumns, head_dim - from);
      decode_row(codes + j * stride + from, scale_inv[j * heads], room, width);
      sum += dot(query + from, room, width);
    }
    return sum;
  }
  void add(float* sum, std::int64_t j, std::int64_t from, float weight, std::int64_t width) const {
    float room[kMostColumns];
    decode_row(codes + j * stride + from, scale_inv[j * heads], room, width);
    add_scaled(sum, room, weight, width);
  }
};

/// One query over its keys, in pieces of 64 with a running maximum and sum. The head's sum of values is kept
/// in pieces of at most 256 dimensions, so that no memory is taken; each piece computes the scores again.
template <typename T, typename Past>
void attend(const CachedAttentionArgs& args, std::int64_t token, std::int64_t head, const Past& keys,
            const Past& values) {
  const std::int64_t head_dim = args.heads.head_dim;
  const T* query = static_cast<const T*>(args.qkv.data) + token * args.qkv.ld + head * head_dim;
  T* out = static_cast<T*>(args.out.data) + token * args.out.ld + head * head_dim;
  const std::int64_t last = args.positions[token];
  const std::int64_t first = args.window > 0 ? std::max<std::int64_t>(0, last - args.window + 1) : 0;
  constexpr std::int64_t most = kMostColumns;
  for (std::int64_t from = 0; from < head_dim; from += most) {
    const std::int64_t width = std::min(most, head_dim - from);
    float sum_of_values[most] = {};
    float scores[kPiece];
    std::int64_t rows[kPiece];
    float maximum = -3.0e38f, sum = 0.0f;
    for (std::int64_t begin = first; begin <= last; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, last + 1 - begin);
      find_rows(args, args.slots[token], begin, count, rows);
      float highest = maximum;
      for (std::int64_t j = 0; j < count; ++j) {
        float score = args.scale * keys.product(query, rows[j], head_dim);
        if (args.soft_cap > 0.0f) score = args.soft_cap * simd::tanh(score / args.soft_cap);
        scores[j] = score;
        highest = score > highest ? score : highest;
      }
      exp_row(scores, highest, count);
      const float factor = simd::exp(maximum - highest);
      sum *= factor;
      if (factor != 1.0f) scale_row(sum_of_values, factor, width);
      maximum = highest;
      for (std::int64_t j = 0; j < count; ++j) {
        sum += scores[j];
        values.add(sum_of_values, rows[j], from, scores[j], width);
      }
    }
    store_row(sum_of_values, 1.0f / sum, out + from, width);
  }
}

template <typename T>
void attend(const CachedAttentionArgs& args, std::int64_t token, std::int64_t head) {
  const Heads& heads = args.heads;
  const std::int64_t stride = heads.kv_heads * heads.head_dim;
  const std::int64_t kv_head = head / (heads.q_heads / heads.kv_heads);
  const auto fp8 = [&](const void* cache, const float* scale_inv) {
    return Fp8Rows{.codes = static_cast<const std::uint8_t*>(cache) + kv_head * heads.head_dim,
                   .scale_inv = scale_inv + kv_head,
                   .stride = stride,
                   .heads = heads.kv_heads};
  };
  const auto plain = [&](const void* cache) {
    return Rows<T>{static_cast<const T*>(cache) + kv_head * heads.head_dim, stride};
  };
  if (args.k_scale_inv != nullptr) {
    return attend<T>(args, token, head, fp8(args.k_cache, args.k_scale_inv),
                     fp8(args.v_cache, args.v_scale_inv));
  }
  attend<T>(args, token, head, plain(args.k_cache), plain(args.v_cache));
}

/// Puts the keys, or values, of a token into row `at` of a cache in E4M3.
template <typename T>
OCTET_SIMD void encode_heads(const T* from, const Heads& heads, std::int64_t at, void* cache,
                             float* scale_inv) {
  float x[kChunk];
  for (std::int64_t head = 0; head < heads.kv_heads; ++head) {
    const T* row = from + head * heads.head_dim;
    std::uint8_t* to = static_cast<std::uint8_t*>(cache) + (at * heads.kv_heads + head) * heads.head_dim;
    std::uint32_t most = 0;
    for (std::int64_t c = 0; c < heads.head_dim; c += kChunk) {
      const std::int64_t n = chunk_length(c, heads.head_dim);
      load(row + c, x, n);
      const std::uint32_t bits = max_bits(x, n);
      most = bits > most ? bits : most;
    }
    const std::int32_t e = block_exponent(most);
    scale_inv[at * heads.kv_heads + head] = power_of_two(e);
    for (std::int64_t c = 0; c < heads.head_dim; c += kChunk) {
      const std::int64_t n = chunk_length(c, heads.head_dim);
      load(row + c, x, n);
      encode_chunk<E4M3>(x, power_of_two(-e), to + c, n);
    }
  }
}

/// On a GPU a lone token finds in its cache what was there before the call, and itself.
void check_alone(const CachedAttentionArgs& args) {
  std::vector<std::pair<std::int32_t, std::int32_t>> places;
  for (std::int64_t t = 0; t < args.alone; ++t) places.emplace_back(args.slots[t], args.positions[t]);
  std::sort(places.begin(), places.end());
  bool alone = std::adjacent_find(places.begin(), places.end(), [](const auto& x, const auto& y) {
                 return x.first == y.first && x.second != y.second;
               }) == places.end();
  for (std::int64_t t = args.alone; t < args.qkv.rows && alone; ++t) {
    const auto from = std::lower_bound(places.begin(), places.end(), std::pair(args.slots[t], 0));
    alone = from == places.end() || from->first != args.slots[t];
  }
  check(alone, "cached_attention: a lone token is the only one of its sequence");
}

template <typename T>
void run(const CachedAttentionArgs& args) {
  const std::int64_t width = args.heads.kv_heads * args.heads.head_dim, tokens = args.qkv.rows;
  std::int64_t seen = 0;
  for (std::int64_t t = 0; t < tokens; ++t) {
    check(args.slots[t] >= 0 && args.positions[t] >= 0 && args.positions[t] < args.capacity,
          "cached_attention: every token's place lies inside the cache");
    const T* k =
        static_cast<const T*>(args.qkv.data) + t * args.qkv.ld + args.heads.q_heads * args.heads.head_dim;
    std::int64_t at = 0;
    find_rows(args, args.slots[t], args.positions[t], 1, &at);
    if (args.k_scale_inv != nullptr) {
      encode_heads(k, args.heads, at, args.k_cache, args.k_scale_inv);
      encode_heads(k + width, args.heads, at, args.v_cache, args.v_scale_inv);
    } else {
      const auto bytes = static_cast<std::size_t>(width) * sizeof(T);
      std::memcpy(static_cast<T*>(args.k_cache) + at * width, k, bytes);
      std::memcpy(static_cast<T*>(args.v_cache) + at * width, k + width, bytes);
    }
    seen = std::max<std::int64_t>(seen, args.positions[t] + 1);
  }
  check_alone(args);
  if (args.fixed_order) return cached_attention_in_order(args);
  // Heads of one token are neighbours, so that threads share tokens evenly whatever their positions.
  const std::int64_t items = tokens * args.heads.q_heads;
  simd::parallel_rows(items, 2 * seen * args.heads.head_dim, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t item = begin; item < end; ++item) {
      attend<T>(args, item / args.heads.q_heads, item % args.heads.q_heads);
    }
  });
}

}  // namespace

void cached_attention(const CachedAttentionArgs& args) {
  return args.qkv.dtype == DType::f32 ? run<float>(args) : run<Bf16>(args);
}

}  // namespace octet::ops::cpu
