#include "cpu/amx_blocks.h"
#include "cpu/attention_amx.h"

#if defined(__x86_64__)

namespace octet::ops::cpu {

namespace amx {
namespace {

/// 64 queries, or their output gradients, in the three layouts of the GEMMs.
struct Side {
  std::uint16_t* rows;        ///< [64][wide]
  std::uint32_t* transposed;  ///< [wide / 2][64]: pairs along the head
  std::uint32_t* pairs;       ///< [32][padded]: pairs of queries
};

struct Scratch {
  std::uint16_t *keys, *values;    ///< [document][wide] rows
  std::uint16_t* keys_transposed;  ///< [padded][document]
  float *d_keys, *d_values;        ///< [document][padded]
  Side query, d_out;
  float *scores, *d_scores;                   ///< [keys][queries]
  std::uint16_t *weight_rows, *d_score_rows;  ///< [keys][queries]
  std::uint32_t* d_score_pairs;               ///< [32][64] pairs of keys
  float* d_query;                             ///< [padded][64], transposed
  float* d_query_rows;                        ///< [64][padded]
  float *lse, *delta;                         ///< [64]
  std::int64_t length, padded, wide;
};

Scratch scratch_at(Pieces& pieces, const Heads& heads, std::int64_t max_length) {
  Scratch s;
  s.length = round_up(std::max<std::int64_t>(1, max_length), block);
  s.padded = padded_head(heads);
  s.wide = round_up(heads.head_dim, 32);
  s.keys = pieces.take<std::uint16_t>(s.length * s.wide);
  s.values = pieces.take<std::uint16_t>(s.length * s.wide);
  s.keys_transposed = pieces.take<std::uint16_t>(s.length * s.padded);
  s.d_keys = pieces.take<float>(s.length * s.padded);
  s.d_values = pieces.take<float>(s.length * s.padded);
  for (Side* side : {&s.query, &s.d_out}) {
    side->rows = pieces.take<std::uint16_t>(block * s.wide);
    side->transposed = pieces.take<std::uint32_t>(s.wide / 2 * block);
    side->pairs = pieces.take<std::uint32_t>(block / 2 * s.padded);
  }
  s.scores = pieces.take<float>(block * block);
  s.d_scores = pieces.take<float>(block * block);
  s.weight_rows = pieces.take<std::uint16_t>(block * block);
  s.d_score_rows = pieces.take<std::uint16_t>(block * block);
  s.d_score_pairs = pieces.take<std::uint32_t>(block / 2 * block);
  s.d_query = pieces.take<float>(s.padded * block);
  s.d_query_rows = pieces.take<float>(s.padded * block);
  s.lse = pieces.take<float>(block);
  s.delta = pieces.take<float>(block);
  return s;
}

OCTET_AMX inline void load_side(const Bf16* from, std::int64_t ld, std::int64_t count, std::int64_t head_dim,
                                const Scratch& s, const Side& side) {
  copy_rows(from, ld, count, head_dim, side.rows, s.wide, block);
  transpose(side.rows, s.wide / 2, block, s.wide / 2, side.transposed, block);
  pair_rows(side.rows, s.wide, block, s.padded, side.pairs);
}

OCTET_AMX inline void store_bf16(std::uint16_t* to, __m512 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
}

/// For 16 queries: weights = exp(scores - lse), score gradients = weights * (d_weights - delta). Both are 0
/// if masked. Writes the layouts of the next GEMMs.
OCTET_AMX inline void gradient_lanes(const ScoreBlock& at, float scale, std::int64_t q, const Scratch& s) {
  const bool masked = at.masked();
  const auto reach =
      static_cast<std::int32_t>(at.window > 0 ? std::min<std::int64_t>(at.window, INT32_MAX) : INT32_MAX);
  const auto back = static_cast<std::int32_t>(std::min<std::int64_t>(at.query - at.key, INT32_MAX / 2) + q);
  const std::int32_t keys = at.key == at.query ? static_cast<std::int32_t>(q) + 16 : block;
  const __m512 factor = _mm512_set1_ps(scale), lse = _mm512_loadu_ps(s.lse + q),
               delta = _mm512_loadu_ps(s.delta + q), one = _mm512_set1_ps(1.0f);
  const __m512 cap_inverse = _mm512_set1_ps(at.soft_cap > 0.0f ? 1.0f / at.soft_cap : 0.0f);
  for (std::int32_t k = 0; k < keys; k += 2) {
    __m512 ds[2];
    for (int i = 0; i < 2; ++i) {
      const std::int64_t place = (k + i) * block + q;
      const __m512 score = _mm512_mul_ps(_mm512_loadu_ps(s.scores + place), factor);
      __m512 p = exp(_mm512_sub_ps(score, lse));
      ds[i] = _mm512_mul_ps(p, _mm512_sub_ps(_mm512_loadu_ps(s.d_scores + place), delta));
      if (at.soft_cap > 0.0f) {
        const __m512 t = _mm512_mul_ps(score, cap_inverse);
        ds[i] = _mm512_mul_ps(ds[i], _mm512_fnmadd_ps(t, t, one));
      }
      if (masked) {
        const __mmask16 mask = seen(back - k - i, reach);
        p = _mm512_maskz_mov_ps(mask, p);
        ds[i] = _mm512_maskz_mov_ps(mask, ds[i]);
      }
      store_bf16(s.weight_rows + place, p);
      store_bf16(s.d_score_rows + place, ds[i]);
    }
    _mm512_storeu_si512(s.d_score_pairs + k / 2 * block + q, paired(ds[0], ds[1]));
  }
  for (std::int32_t k = keys; k < block; ++k) {
    store_bf16(s.weight_rows + k * block + q, _mm512_setzero_ps());
    store_bf16(s.d_score_rows + k * block + q, _mm512_setzero_ps());
    if (k % 2 == 0) _mm512_storeu_si512(s.d_score_pairs + k / 2 * block + q, _mm512_setzero_si512());
  }
}

OCTET_AMX void block_gradients(const AttentionBackwardArgs& args, const ScoreBlock& at, const Scratch& s) {
  multiply({.a = s.keys + at.key * s.wide,
            .lda = s.wide,
            .b = s.query.transposed,
            .ldb = block,
            .c = s.scores,
            .ldc = block,
            .m = block,
            .n = block,
            .k = s.wide,
            .accumulate = false});
  multiply({.a = s.values + at.key * s.wide,
            .lda = s.wide,
            .b = s.d_out.transposed,
            .ldb = block,
            .c = s.d_scores,
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
  for (std::int64_t q = 0; q < block; q += 16) gradient_lanes(at, scale, q, s);
  multiply({.a = s.weight_rows,
            .lda = block,
            .b = s.d_out.pairs,
            .ldb = s.padded,
            .c = s.d_values + at.key * s.padded,
            .ldc = s.padded,
            .m = block,
            .n = s.padded,
            .k = block,
            .accumulate = true});
  multiply({.a = s.d_score_rows,
            .lda = block,
            .b = s.query.pairs,
            .ldb = s.padded,
            .c = s.d_keys + at.key * s.padded,
            .ldc = s.padded,
            .m = block,
            .n = s.padded,
            .k = block,
            .accumulate = true});
  multiply({.a = s.keys_transposed + at.key,
            .lda = s.length,
            .b = s.d_score_pairs,
            .ldb = block,
            .c = s.d_query,
            .ldc = block,
            .m = s.padded,
            .n = block,
            .k = block,
            .accumulate = true});
}

/// Computes the sums of out * d_out for `count` rows.
OCTET_AMX void deltas(const Bf16* out, std::int64_t ld, const std::uint16_t* d_out, std::int64_t ld_d,
                      std::int64_t count, std::int64_t head_dim, float* delta) {
  for (std::int64_t q = 0; q < count; ++q) {
    float sum[16] = {};
    std::int64_t i = 0;
    const Bf16* x = out + q * ld;
    const std::uint16_t* y = d_out + q * ld_d;
    for (; i + 16 <= head_dim; i += 16) {
      for (int lane = 0; lane < 16; ++lane) {
        sum[lane] = simd::fmadd(simd::load(x[i + lane]), from_bf16(y[i + lane]), sum[lane]);
      }
    }
    for (int lane = 0; i < head_dim; ++i, ++lane) {
      sum[lane] = simd::fmadd(simd::load(x[i]), from_bf16(y[i]), sum[lane]);
    }
    delta[q] = _mm512_reduce_add_ps(_mm512_loadu_ps(sum));
  }
  std::fill(delta + count, delta + block, 0.0f);
}

OCTET_AMX void backward(const AttentionBackwardArgs& args, const AttentionTask& task) {
  Pieces pieces(task.scratch);
  const Heads& heads = args.heads;
  const Scratch s = scratch_at(pieces, heads, args.documents.max_length);
  const Tiles tiles;
  const std::int64_t head_dim = heads.head_dim, ld = args.qkv.ld, length = task.last;
  const std::int64_t k_at = (heads.q_heads + task.kv_head) * head_dim,
                     v_at = k_at + heads.kv_heads * head_dim;
  const Bf16* tokens = static_cast<const Bf16*>(args.qkv.data) + task.start * ld;
  Bf16* d_tokens = static_cast<Bf16*>(args.d_qkv.data) + task.start * args.d_qkv.ld;
  const std::int64_t total = round_up(length, block);
  copy_rows(tokens + k_at, ld, length, head_dim, s.keys, s.wide, total);
  copy_rows(tokens + v_at, ld, length, head_dim, s.values, s.wide, total);
  for (std::int64_t key = 0; key < total; key += block) {
    pair_rows(s.keys + key * s.wide, s.wide, block, s.padded, s.query.pairs);
    transpose(s.query.pairs, s.padded, block / 2, s.padded,
              reinterpret_cast<std::uint32_t*>(s.keys_transposed + key), s.length / 2);
  }
  for (float* sum : {s.d_keys, s.d_values}) {
    std::memset(sum, 0, static_cast<std::size_t>(total * s.padded) * sizeof(float));
  }
  const std::int64_t group = heads.q_heads / heads.kv_heads;
  for (std::int64_t head = task.kv_head * group; head < (task.kv_head + 1) * group; ++head) {
    for (std::int64_t query = 0; query < length; query += block) {
      const std::int64_t count = std::min(block, length - query), token = task.start + query;
      load_side(tokens + query * ld + head * head_dim, ld, count, head_dim, s, s.query);
      const Bf16* d_out = static_cast<const Bf16*>(args.d_out.data) + token * args.d_out.ld + head * head_dim;
      load_side(d_out, args.d_out.ld, count, head_dim, s, s.d_out);
      const Bf16* out = static_cast<const Bf16*>(args.out.data) + token * args.out.ld + head * head_dim;
      deltas(out, args.out.ld, s.d_out.rows, s.wide, count, head_dim, s.delta);
      std::memcpy(s.lse, args.lse + head * args.qkv.rows + token,
                  static_cast<std::size_t>(count) * sizeof(float));
      std::fill(s.lse + count, s.lse + block, 0.0f);
      std::memset(s.d_query, 0, static_cast<std::size_t>(s.padded * block) * sizeof(float));
      for (std::int64_t key = first_key_block(query, args.window); key <= query; key += block) {
        block_gradients(args, {.query = query, .key = key, .window = args.window, .soft_cap = args.soft_cap},
                        s);
      }
      transpose(s.d_query, block, s.padded, block, s.d_query_rows, s.padded);
      store_rows(s.d_query_rows, s.padded, count, head_dim, args.scale,
                 d_tokens + query * args.d_qkv.ld + head * head_dim, args.d_qkv.ld);
    }
  }
  store_rows(s.d_keys, s.padded, length, head_dim, args.scale, d_tokens + k_at, args.d_qkv.ld);
  store_rows(s.d_values, s.padded, length, head_dim, 1.0f, d_tokens + v_at, args.d_qkv.ld);
}

}  // namespace
}  // namespace amx

std::size_t amx_backward_scratch_bytes(const Heads& heads, std::int64_t max_length) {
  amx::Pieces pieces(nullptr);
  amx::scratch_at(pieces, heads, max_length);
  return (pieces.used() + 255) / 256 * 256;
}

void amx_backward(const AttentionBackwardArgs& args, const AttentionTask& task) {
  amx::backward(args, task);
}

}  // namespace octet::ops::cpu

#else

namespace octet::ops::cpu {
std::size_t amx_backward_scratch_bytes(const Heads&, std::int64_t) {
  return 0;
}
void amx_backward(const AttentionBackwardArgs&, const AttentionTask&) {}
}  // namespace octet::ops::cpu

#endif
