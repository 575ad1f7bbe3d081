// Decoding attention: first every token's key and value are written to the cache, then every token attends.
// Tokens are few and caches are long, so reading the cache is the bottleneck. Blocks of queries are not used.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "block_scale.h"
#include "cpu/attention_tiles.h"
#include "cpu/cached_rows.h"
#include "cpu/few_rows.h"
#include "cpu/rows.h"
#include "octet/base/error.h"
#include "octet/ops/attention.h"

namespace octet::ops::cpu {

void cached_attention(const CachedAttentionArgs& args);

namespace {

template <typename T>
OCTET_SIMD void load_row(const T* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = simd::load(from[i]);
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

/// Converts query-key products to attention scores. Returns the larger of `maximum` and the largest score.
OCTET_SIMD float scale_scores(float* scores, float scale, float soft_cap, float maximum, std::int64_t count) {
  for (std::int64_t j = 0; j < count; ++j) {
    scores[j] *= scale;
    if (soft_cap > 0.0f) scores[j] = soft_cap * simd::tanh(scores[j] / soft_cap);
    maximum = scores[j] > maximum ? scores[j] : maximum;
  }
  return maximum;
}

/// Rows 0, 1, 2, ...
constexpr auto kNumbers = [] {
  std::array<std::int64_t, kCachedPiece> rows{};
  for (std::size_t j = 0; j < rows.size(); ++j) rows[j] = static_cast<std::int64_t>(j);
  return rows;
}();
constexpr const std::int64_t* kInOrder = kNumbers.data();

/// A thread's data for its heads: fp32, heads in order.
struct Room {
  std::vector<float> queries, scores, sums, decoded, unpacked;
  std::vector<float> maximum, total;
};

/// KV heads [kv_first, kv_first + kv_heads) of a token, with all their query heads.
struct Part {
  std::int64_t token = 0, kv_first = 0, kv_heads = 0;
};

/// One token's attention with some heads: keys in pieces of 64 with a running maximum and sum. Each cache row
/// is read once for all these heads, in order: a single head's share of a row is too short for the hardware
/// prefetcher. Rows are first converted to padded fp32 if they are E4M3 or if head_dim is not a multiple of
/// kStep.
template <typename T>
class Attention {
 public:
  Attention(const CachedAttentionArgs& args, const Part& part, Room& room)
      : args_(args),
        part_(part),
        room_(room),
        group_(args.heads.q_heads / args.heads.kv_heads),
        heads_(part.kv_heads * group_),
        fp8_(args.k_scale_inv != nullptr),
        direct_(!fp8_ && args.heads.head_dim % kStep == 0),
        padded_(round_up(args.heads.head_dim, kStep)) {}

  void run() {
    load_queries();
    const std::int64_t last = args_.positions[part_.token];
    const std::int64_t first = args_.window > 0 ? std::max<std::int64_t>(0, last - args_.window + 1) : 0;
    room_.sums.assign(static_cast<std::size_t>(heads_ * padded_), 0.0f);
    room_.maximum.assign(static_cast<std::size_t>(heads_), -3.0e38f);
    room_.total.assign(static_cast<std::size_t>(heads_), 0.0f);
    for (std::int64_t begin = first; begin <= last; begin += kCachedPiece) {
      const std::int64_t count = std::min(kCachedPiece, last + 1 - begin);
      std::int64_t rows[kCachedPiece];
      find_rows(args_, args_.slots[part_.token], begin, count, rows);
      cached_kernels().scores(piece(args_.k_cache, args_.k_scale_inv, rows, count), packed());
      for (std::int64_t head = 0; head < heads_; ++head) weigh(head, count);
      cached_kernels().add_values(piece(args_.v_cache, args_.v_scale_inv, rows, count), packed());
    }
    store();
  }

 private:
  static constexpr std::int64_t kStep = 32;

  bool packed() const { return direct_ && std::is_same_v<T, Bf16>; }

  void load_queries() {
    const std::int64_t head_dim = args_.heads.head_dim;
    room_.queries.assign(static_cast<std::size_t>(heads_ * padded_), 0.0f);
    room_.scores.resize(static_cast<std::size_t>(heads_ * kCachedPiece));
    const T* query = static_cast<const T*>(args_.qkv.data) + part_.token * args_.qkv.ld +
                     part_.kv_first * group_ * head_dim;
    for (std::int64_t head = 0; head < heads_; ++head) {
      float* to = room_.queries.data() + head * padded_;
      if constexpr (std::is_same_v<T, Bf16>) {
        if (packed()) {
          cached_kernels().pack(query + head * head_dim, head_dim, to);
          continue;
        }
      }
      load_row(query + head * head_dim, to, head_dim);
    }
  }

  /// Returns keys or values in the kernels' layout.
  CachedPiece piece(const void* cache, const float* scale_inv, const std::int64_t* rows, std::int64_t count) {
    const std::int64_t head_dim = args_.heads.head_dim;
    const std::int64_t stride = args_.heads.kv_heads * head_dim;
    CachedPiece of{.rows = rows,
                   .stride = stride,
                   .count = count,
                   .kv_heads = part_.kv_heads,
                   .group = group_,
                   .head_dim = padded_,
                   .queries = room_.queries.data(),
                   .scores = room_.scores.data(),
                   .sums = room_.sums.data()};
    if (direct_) {
      of.data = static_cast<const T*>(cache) + part_.kv_first * head_dim;
      return of;
    }
    room_.decoded.resize(static_cast<std::size_t>(kCachedPiece * part_.kv_heads * padded_));
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t kv = 0; kv < part_.kv_heads; ++kv) {
        const std::int64_t at = rows[j] * args_.heads.kv_heads + part_.kv_first + kv;
        float* to = room_.decoded.data() + (j * part_.kv_heads + kv) * padded_;
        if (fp8_) {
          decode_row(static_cast<const std::uint8_t*>(cache) + at * head_dim, scale_inv[at], to, head_dim);
        } else {
          load_row(static_cast<const T*>(cache) + at * head_dim, to, head_dim);
        }
        std::fill(to + head_dim, to + padded_, 0.0f);
      }
    }
    of.data = room_.decoded.data();
    of.rows = kInOrder;
    of.stride = part_.kv_heads * padded_;
    return of;
  }

  /// Converts scores of a piece to weights and rescales previous sums to the new maximum.
  void weigh(std::int64_t head, std::int64_t count) {
    float* scores = room_.scores.data() + head * kCachedPiece;
    float& maximum = room_.maximum[static_cast<std::size_t>(head)];
    const float highest = scale_scores(scores, args_.scale, args_.soft_cap, maximum, count);
    exp_row(scores, highest, count);
    const float factor = simd::exp(maximum - highest);
    float& total = room_.total[static_cast<std::size_t>(head)];
    total *= factor;
    if (factor != 1.0f) scale_row(room_.sums.data() + head * padded_, factor, padded_);
    maximum = highest;
    for (std::int64_t j = 0; j < count; ++j) total += scores[j];
  }

  void store() {
    const std::int64_t head_dim = args_.heads.head_dim;
    T* out =
        static_cast<T*>(args_.out.data) + part_.token * args_.out.ld + part_.kv_first * group_ * head_dim;
    room_.unpacked.resize(static_cast<std::size_t>(padded_));
    for (std::int64_t head = 0; head < heads_; ++head) {
      const float* sums = room_.sums.data() + head * padded_;
      const auto at = static_cast<std::size_t>(head);
      if (args_.lse != nullptr) {
        args_.lse[(part_.kv_first * group_ + head) * args_.qkv.rows + part_.token] =
            room_.maximum[at] + std::log(room_.total[at]);
      }
      if (packed()) {
        cached_kernels().unpack(sums, head_dim, room_.unpacked.data());
        sums = room_.unpacked.data();
      }
      store_row(sums, 1.0f / room_.total[at], out + head * head_dim, head_dim);
    }
  }

  const CachedAttentionArgs& args_;
  const Part& part_;
  Room& room_;
  std::int64_t group_, heads_;
  bool fp8_;
  bool direct_;  ///< the kernels read the cache without conversion
  std::int64_t padded_;
};

/// Writes the keys, or values, of a token into row `at` of an E4M3 cache.
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

/// On a GPU, a single-token sequence sees only the cache contents from before the call, and its token.
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
  check(alone, "cached_attention: a single-token sequence has one token");
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
  // Few tokens are also divided by heads. The result does not depend on the division.
  const std::int64_t kv_heads = args.heads.kv_heads;
  const std::int64_t parts =
      std::clamp<std::int64_t>(2 * octet::cpu::op_threads() / std::max<std::int64_t>(1, tokens), 1, kv_heads);
  simd::parallel_pieces(tokens * parts, 4 * seen * args.heads.q_heads * args.heads.head_dim / parts,
                        [&](std::int64_t item) {
                          thread_local Room room;
                          const std::int64_t part = item % parts, first = kv_heads * part / parts;
                          const Part of{item / parts, first, kv_heads * (part + 1) / parts - first};
                          Attention<T>(args, of, room).run();
                        });
}

}  // namespace

void cached_attention(const CachedAttentionArgs& args) {
  return args.qkv.dtype == DType::f32 ? run<float>(args) : run<Bf16>(args);
}

}  // namespace octet::ops::cpu
