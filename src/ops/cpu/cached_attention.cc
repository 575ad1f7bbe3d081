// Attention of decoding: first every token's key and value go to the cache, then every token attends. Tokens
// are few and caches long, so that this is bound by reading the cache: no blocks of queries.
#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "cpu/simd.h"
#include "octet/base/error.h"
#include "octet/ops/attention.h"

namespace octet::ops::cpu {

void cached_attention(const CachedAttentionArgs& args);

namespace {

template <typename T>
OCTET_SIMD float dot(const T* a, const T* b, std::int64_t count) {
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

/// One query over its keys, in pieces of 64 with a running maximum and sum. The head's sum of values is kept
/// in pieces of at most 256 dimensions, so that no memory is taken; each piece computes the scores again.
template <typename T>
void attend(const CachedAttentionArgs& args, std::int64_t token, std::int64_t head) {
  const Heads& heads = args.heads;
  const std::int64_t head_dim = heads.head_dim, stride = heads.kv_heads * head_dim;
  const std::int64_t kv_head = head / (heads.q_heads / heads.kv_heads);
  const std::int64_t base = args.slots[token] * args.capacity * stride + kv_head * head_dim;
  const T* keys = static_cast<const T*>(args.k_cache) + base;
  const T* values = static_cast<const T*>(args.v_cache) + base;
  const T* query = static_cast<const T*>(args.qkv.data) + token * args.qkv.ld + head * head_dim;
  T* out = static_cast<T*>(args.out.data) + token * args.out.ld + head * head_dim;
  const std::int64_t last = args.positions[token];
  const std::int64_t first = args.window > 0 ? std::max<std::int64_t>(0, last - args.window + 1) : 0;
  constexpr std::int64_t piece = 64, most = 256;
  for (std::int64_t from = 0; from < head_dim; from += most) {
    const std::int64_t width = std::min(most, head_dim - from);
    float sum_of_values[most] = {};
    float scores[piece];
    float maximum = -3.0e38f, sum = 0.0f;
    for (std::int64_t begin = first; begin <= last; begin += piece) {
      const std::int64_t count = std::min(piece, last + 1 - begin);
      float highest = maximum;
      for (std::int64_t j = 0; j < count; ++j) {
        float score = args.scale * dot(query, keys + (begin + j) * stride, head_dim);
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
        add_scaled(sum_of_values, values + (begin + j) * stride + from, scores[j], width);
      }
    }
    store_row(sum_of_values, 1.0f / sum, out + from, width);
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
    const std::int64_t at = (args.slots[t] * args.capacity + args.positions[t]) * width;
    const auto bytes = static_cast<std::size_t>(width) * sizeof(T);
    std::memcpy(static_cast<T*>(args.k_cache) + at, k, bytes);
    std::memcpy(static_cast<T*>(args.v_cache) + at, k + width, bytes);
    seen = std::max<std::int64_t>(seen, args.positions[t] + 1);
  }
  check_alone(args);
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
