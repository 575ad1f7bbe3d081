#include "cpu/attention_amx.h"

#include "cpu/amx_blocks.h"

#if defined(__x86_64__)

#include <cmath>

namespace octet::ops::cpu {

namespace amx {
namespace {

constexpr float lowest = -3.0e38f;

struct Scratch {
  std::uint16_t* keys;     ///< [document][wide] rows
  std::uint16_t* values;   ///< [padded][document] transposed rows
  std::uint16_t* rows;     ///< [64][wide]
  std::uint32_t* pairs;    ///< [32][padded]
  std::uint32_t* queries;  ///< [wide / 2][64] pairs of the transposed queries
  float* scores;           ///< [keys][queries]
  std::uint32_t* weights;  ///< [32][64] pairs of keys
  float* out;              ///< [padded][64]: the result, transposed
  float* out_rows;         ///< [64][padded]
  float *maximum, *sum;    ///< [64]
  std::int64_t length, padded, wide;
};

Scratch scratch_at(Pieces& pieces, const Heads& heads, std::int64_t max_length) {
  Scratch s;
  s.length = round_up(std::max<std::int64_t>(1, max_length), block);
  s.padded = padded_head(heads);
  s.wide = round_up(heads.head_dim, 32);
  s.keys = pieces.take<std::uint16_t>(s.length * s.wide);
  s.values = pieces.take<std::uint16_t>(s.length * s.padded);
  s.rows = pieces.take<std::uint16_t>(block * s.wide);
  s.pairs = pieces.take<std::uint32_t>(block / 2 * s.padded);
  s.queries = pieces.take<std::uint32_t>(s.wide / 2 * block);
  s.scores = pieces.take<float>(block * block);
  s.weights = pieces.take<std::uint32_t>(block / 2 * block);
  s.out = pieces.take<float>(s.padded * block);
  s.out_rows = pieces.take<float>(s.padded * block);
  s.maximum = pieces.take<float>(block);
  s.sum = pieces.take<float>(block);
  return s;
}

/// Softmax of 16 queries (one vector lane each) over the 64 keys of a block. Scores become bf16 weights. The
/// running maximum and sum are updated, and previous sums are scaled to the new maximum.
OCTET_AMX inline void softmax_lanes(const ScoreBlock& at, float scale, std::int64_t q, const Scratch& s) {
  const bool masked = at.masked();
  const auto reach =
      static_cast<std::int32_t>(at.window > 0 ? std::min<std::int64_t>(at.window, INT32_MAX) : INT32_MAX);
  const auto back = static_cast<std::int32_t>(std::min<std::int64_t>(at.query - at.key, INT32_MAX / 2) + q);
  const std::int32_t keys = at.key == at.query ? static_cast<std::int32_t>(q) + 16 : block;
  const __m512 factor = _mm512_set1_ps(scale), low = _mm512_set1_ps(lowest);
  const __m512 before = _mm512_loadu_ps(s.maximum + q);
  __m512 maximum = before;
  for (std::int32_t k = 0; k < keys; ++k) {
    __m512 x = _mm512_mul_ps(_mm512_loadu_ps(s.scores + k * block + q), factor);
    if (masked) x = _mm512_mask_mov_ps(low, seen(back - k, reach), x);
    maximum = _mm512_max_ps(x, maximum);  // a NaN does not change the maximum; it appears in the sum
  }
  const __m512 older = exp(_mm512_sub_ps(before, maximum));
  __m512 sum = _mm512_mul_ps(_mm512_loadu_ps(s.sum + q), older);
  for (std::int32_t k = 0; k < keys; k += 2) {
    __m512 p[2];
    for (int i = 0; i < 2; ++i) {
      const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(s.scores + (k + i) * block + q), factor);
      p[i] = exp(_mm512_sub_ps(x, maximum));
      if (masked) p[i] = _mm512_maskz_mov_ps(seen(back - k - i, reach), p[i]);
      sum = _mm512_add_ps(sum, p[i]);
    }
    _mm512_storeu_si512(s.weights + k / 2 * block + q, paired(p[0], p[1]));
  }
  for (std::int32_t k = keys; k < block; k += 2) {
    _mm512_storeu_si512(s.weights + k / 2 * block + q, _mm512_setzero_si512());
  }
  _mm512_storeu_ps(s.maximum + q, maximum);
  _mm512_storeu_ps(s.sum + q, sum);
  if (_mm512_cmpneq_ps_mask(older, _mm512_set1_ps(1.0f)) == 0) return;
  for (std::int64_t d = 0; d < s.padded; ++d) {
    float* out = s.out + d * block + q;
    _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_loadu_ps(out), older));
  }
}

OCTET_AMX void query_block(const AttentionArgs& args, const AttentionTask& task, std::int64_t head,
                           std::int64_t query, std::int64_t from, const Scratch& s) {
  const std::int64_t head_dim = args.heads.head_dim, ld = args.qkv.ld;
  const std::int64_t count = std::min(block, task.last - query), token = task.start + query;
  const Bf16* queries = static_cast<const Bf16*>(args.qkv.data) + token * ld + head * head_dim;
  copy_rows(queries, ld, count, head_dim, s.rows, s.wide, block);
  transpose(s.rows, s.wide / 2, block, s.wide / 2, s.queries, block);
  std::memset(s.out, 0, static_cast<std::size_t>(s.padded * block) * sizeof(float));
  std::fill(s.maximum, s.maximum + block, lowest);
  std::fill(s.sum, s.sum + block, 0.0f);
  for (std::int64_t key = first_key_block(query, args.window); key <= query; key += block) {
    const ScoreBlock at{.query = query, .key = key, .window = args.window, .soft_cap = args.soft_cap};
    multiply({.a = s.keys + (key - from) * s.wide,
              .lda = s.wide,
              .b = s.queries,
              .ldb = block,
              .c = s.scores,
              .ldc = block,
              .m = block,
              .n = block,
              .k = s.wide,
              .accumulate = false});
    float scale = args.scale;
    if (args.soft_cap > 0.0f) {
      for (std::int64_t k = 0; k < block; ++k) cap_row(s.scores + k * block, scale, args.soft_cap);
      scale = 1.0f;
    }
    for (std::int64_t q = 0; q < block; q += 16) softmax_lanes(at, scale, q, s);
    multiply({.a = s.values + (key - from),
              .lda = s.length,
              .b = s.weights,
              .ldb = block,
              .c = s.out,
              .ldc = block,
              .m = s.padded,
              .n = block,
              .k = block,
              .accumulate = true});
  }
  transpose(s.out, block, s.padded, block, s.out_rows, s.padded);
  Bf16* out = static_cast<Bf16*>(args.out.data) + token * args.out.ld + head * head_dim;
  for (std::int64_t q = 0; q < count; ++q) {
    store_rows(s.out_rows + q * s.padded, s.padded, 1, head_dim, 1.0f / s.sum[q], out + q * args.out.ld, 0);
    if (args.lse != nullptr) {
      args.lse[head * args.qkv.rows + token + q] = s.maximum[q] + std::log(s.sum[q]);
    }
  }
}

OCTET_AMX void forward(const AttentionArgs& args, const AttentionTask& task) {
  Pieces pieces(task.scratch);
  const Heads& heads = args.heads;
  const Scratch s = scratch_at(pieces, heads, args.documents.max_length);
  const Tiles tiles;
  const std::int64_t head_dim = heads.head_dim, ld = args.qkv.ld;
  const std::int64_t from = first_key_block(task.first, args.window);
  const std::int64_t rows = task.last - from, total = round_up(rows, block);
  const Bf16* k = static_cast<const Bf16*>(args.qkv.data) + (task.start + from) * ld +
                  (heads.q_heads + task.kv_head) * head_dim;
  const Bf16* v = k + heads.kv_heads * head_dim;
  copy_rows(k, ld, rows, head_dim, s.keys, s.wide, total);
  for (std::int64_t key = 0; key < total; key += block) {
    copy_rows(v + key * ld, ld, std::min(block, rows - key), head_dim, s.rows, s.wide, block);
    pair_rows(s.rows, s.wide, block, s.padded, s.pairs);
    transpose(s.pairs, s.padded, block / 2, s.padded, reinterpret_cast<std::uint32_t*>(s.values + key),
              s.length / 2);
  }
  const std::int64_t group = heads.q_heads / heads.kv_heads;
  for (std::int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
    for (std::int64_t query = task.first; query < task.last; query += block) {
      query_block(args, task, head, query, from, s);
    }
  }
}

}  // namespace
}  // namespace amx

std::size_t amx_forward_scratch_bytes(const Heads& heads, std::int64_t max_length) {
  amx::Pieces pieces(nullptr);
  amx::scratch_at(pieces, heads, max_length);
  return (pieces.used() + 255) / 256 * 256;
}

void amx_forward(const AttentionArgs& args, const AttentionTask& task) {
  amx::forward(args, task);
}

}  // namespace octet::ops::cpu

#else

namespace octet::ops::cpu {
std::size_t amx_forward_scratch_bytes(const Heads&, std::int64_t) {
  return 0;
}
void amx_forward(const AttentionArgs&, const AttentionTask&) {}
}  // namespace octet::ops::cpu

#endif
