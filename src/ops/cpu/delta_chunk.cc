#include "cpu/delta_chunk.h"

#include <cmath>

#include "cpu/attention_tiles.h"
#include "cpu/rows.h"
#include "cpu/tile_gemm.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {

DeltaSizes::DeltaSizes(const DeltaHeads& heads)
    : key_dim(heads.key_dim),
      value_dim(heads.value_dim),
      keys(round_up(heads.key_dim, tile_cols)),
      values(round_up(heads.value_dim, tile_cols)),
      group(heads.value_heads / heads.key_heads) {}

DeltaKeys::DeltaKeys(DeltaScratchRoom& room, const DeltaSizes& sizes)
    : q(room.take(kDeltaChunk * sizes.keys)),
      k(room.take(kDeltaChunk * sizes.keys)),
      k_transposed(room.take(kDeltaChunk * sizes.keys)),
      q_scale(room.take(kDeltaChunk)),
      k_scale(room.take(kDeltaChunk)),
      qk(room.take(kDeltaChunk * kDeltaChunk)),
      kk(room.take(kDeltaChunk * kDeltaChunk)) {}

DeltaDecays::DeltaDecays(DeltaScratchRoom& room)
    : beta(room.take(kDeltaChunk)),
      from_start(room.take(kDeltaChunk)),
      to_end(room.take(kDeltaChunk)),
      between(room.take(kDeltaChunk * kDeltaChunk)),
      weights(room.take(kDeltaChunk * kDeltaChunk)),
      solver(room.take(kDeltaChunk * kDeltaChunk)) {}

namespace {

/// to = from * factor / sqrt(|from|² + eps), then zeros up to `padded`. Returns the scale.
template <typename T>
OCTET_SIMD float unit_row(const T* from, float factor, float* to, std::int64_t dim, std::int64_t padded) {
  Lanes squares;
  add_terms(
      squares, dim, [&](std::int64_t i) __attribute__((always_inline)) {
        return simd::load(from[i]) * simd::load(from[i]);
      });
  const float scale = factor / std::sqrt(total(squares) + kDeltaNormEps);
  for (std::int64_t i = 0; i < dim; ++i) to[i] = simd::load(from[i]) * scale;
  for (std::int64_t i = dim; i < padded; ++i) to[i] = 0.0f;
  return scale;
}

/// `sums` holds G. Differences are taken in double, because a large decay would remove the digits of others.
OCTET_SIMD void fill_decays(const double* sums, std::int64_t rows, const DeltaKeys& keys,
                            const DeltaDecays& to) {
  const double end = sums[rows - 1];
  for (std::int64_t i = 0; i < rows; ++i) to.from_start[i] = simd::exp(static_cast<float>(sums[i]));
  for (std::int64_t i = 0; i < rows; ++i) to.to_end[i] = simd::exp(static_cast<float>(end - sums[i]));
  for (std::int32_t i = 0; i < rows; ++i) {
    float difference[kDeltaChunk];
    for (std::int64_t j = 0; j < rows; ++j) difference[j] = static_cast<float>(sums[i] - sums[j]);
    const float *qk = keys.qk + i * kDeltaChunk, *kk = keys.kk + i * kDeltaChunk;
    float *between = to.between + i * kDeltaChunk, *weights = to.weights + i * kDeltaChunk,
          *solver = to.solver + i * kDeltaChunk;
    for (std::int32_t j = 0; j < rows; ++j) {
      const float e = simd::exp(j <= i ? difference[j] : 0.0f);
      between[j] = j <= i ? e : 0.0f;
      weights[j] = j <= i ? e * qk[j] : 0.0f;
      solver[j] = j < i ? -e * kk[j] : 0.0f;
    }
  }
}

/// to += factor * from
OCTET_SIMD void add_multiple(const float* __restrict from, float factor, std::int64_t n,
                             float* __restrict to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = simd::fmadd(factor, from[i], to[i]);
}
OCTET_SIMD void multiply_row(const float* __restrict from, float factor, std::int64_t n,
                             float* __restrict to) {
  for (std::int64_t i = 0; i < n; ++i) to[i] = factor * from[i];
}

}  // namespace

template <typename T>
void unit_delta_rows(const T* from, std::int64_t ld, float factor, const DeltaTokens& tokens,
                     std::int64_t dim, std::int64_t padded, float* to, float* scales) {
  for (std::int64_t i = 0; i < tokens.count; ++i) {
    scales[i] = unit_row(from + i * ld, factor, to + i * padded, dim, padded);
  }
  std::fill(to + tokens.count * padded, to + tokens.rows * padded, 0.0f);
  std::fill(scales + tokens.count, scales + tokens.rows, 0.0f);
}
template void unit_delta_rows<float>(const float*, std::int64_t, float, const DeltaTokens&, std::int64_t,
                                     std::int64_t, float*, float*);
template void unit_delta_rows<Bf16>(const Bf16*, std::int64_t, float, const DeltaTokens&, std::int64_t,
                                    std::int64_t, float*, float*);

template <typename T>
void load_delta_keys(const ConstMatrix& qkv, const DeltaHeads& heads, std::int64_t key_head,
                     const DeltaTokens& tokens, const DeltaKeys& to) {
  const DeltaSizes sizes(heads);
  const T* q = row_of<T>(qkv, tokens.first) + key_head * heads.key_dim;
  const float factor = 1.0f / std::sqrt(static_cast<float>(heads.key_dim));
  unit_delta_rows(q, qkv.ld, factor, tokens, sizes.key_dim, sizes.keys, to.q, to.q_scale);
  unit_delta_rows(q + heads.keys(), qkv.ld, 1.0f, tokens, sizes.key_dim, sizes.keys, to.k, to.k_scale);
  transpose_delta(to.k, tokens.rows, sizes.keys, to.k_transposed, kDeltaChunk);
  lower_dots(to.q, sizes.keys, to.k_transposed, sizes.key_dim, tokens.rows, to.qk);
  lower_dots(to.k, sizes.keys, to.k_transposed, sizes.key_dim, tokens.rows, to.kk);
}
template void load_delta_keys<float>(const ConstMatrix&, const DeltaHeads&, std::int64_t, const DeltaTokens&,
                                     const DeltaKeys&);
template void load_delta_keys<Bf16>(const ConstMatrix&, const DeltaHeads&, std::int64_t, const DeltaTokens&,
                                    const DeltaKeys&);

void load_delta_decays(const float* log_decay, const float* beta, const DeltaHeads& heads,
                       std::int64_t value_head, const DeltaTokens& tokens, const DeltaKeys& keys,
                       DeltaDecays& to) {
  // exp() of anything below is zero. The bound keeps sums finite, and NaN stays NaN.
  constexpr float least = -128.0f;
  const std::int64_t at = tokens.first * heads.value_heads + value_head;
  double sums[kDeltaChunk];
  double sum = 0;
  for (std::int64_t i = 0; i < tokens.rows; ++i) {
    const bool real = i < tokens.count;
    const float g = real ? log_decay[at + i * heads.value_heads] : 0.0f;
    sum += static_cast<double>(g < least ? least : g);
    sums[i] = sum;
    to.beta[i] = real ? beta[at + i * heads.value_heads] : 0.0f;
  }
  fill_decays(sums, tokens.rows, keys, to);
  to.whole = to.from_start[tokens.rows - 1];
}

void solve_delta_values(const DeltaDecays& decays, std::int64_t rows, std::int64_t values, float* x,
                        float* u) {
  TileGemm tile{.a_row = kDeltaChunk,
                .a_col = 1,
                .b = u,
                .ldb = values,
                .ldc = values,
                .m = tile_rows,
                .n = values,
                .accumulate = true};
  for (std::int64_t first = 0; first < rows; first += tile_rows) {
    tile.a = decays.solver + first * kDeltaChunk;
    tile.c = x + first * values;
    tile.k = first;
    if (first > 0) tile_gemm(tile);
    for (std::int64_t i = first; i < first + tile_rows; ++i) {
      for (std::int64_t j = first; j < i; ++j) {
        add_multiple(u + j * values, decays.solver[i * kDeltaChunk + j], values, x + i * values);
      }
      multiply_row(x + i * values, decays.beta[i], values, u + i * values);
    }
  }
}

void solve_delta_gradients(const DeltaDecays& decays, std::int64_t rows, std::int64_t values, float* r,
                           float* d) {
  TileGemm tile{.a_row = 1,
                .a_col = kDeltaChunk,
                .ldb = values,
                .ldc = values,
                .m = tile_rows,
                .n = values,
                .accumulate = true};
  for (std::int64_t first = rows - tile_rows; first >= 0; first -= tile_rows) {
    const std::int64_t after = first + tile_rows;
    tile.a = decays.solver + after * kDeltaChunk + first;
    tile.b = d + after * values;
    tile.c = r + first * values;
    tile.k = rows - after;
    if (tile.k > 0) tile_gemm(tile);
    for (std::int64_t j = after - 1; j >= first; --j) {
      for (std::int64_t i = after - 1; i > j; --i) {
        add_multiple(d + i * values, decays.solver[i * kDeltaChunk + j], values, r + j * values);
      }
      multiply_row(r + j * values, decays.beta[j], values, d + j * values);
    }
  }
}

void add_lower(const float* lower, const float* from, std::int64_t rows, std::int64_t n, float* to) {
  TileGemm tile{.a_row = kDeltaChunk,
                .a_col = 1,
                .b = from,
                .ldb = n,
                .ldc = n,
                .m = tile_rows,
                .n = n,
                .accumulate = true};
  for (std::int64_t first = 0; first < rows; first += tile_rows) {
    tile.a = lower + first * kDeltaChunk;
    tile.c = to + first * n;
    tile.k = first + tile_rows;
    tile_gemm(tile);
  }
}

void add_lower_transposed(const float* lower, const float* from, std::int64_t rows, std::int64_t n,
                          float* to) {
  TileGemm tile{
      .a_row = 1, .a_col = kDeltaChunk, .ldb = n, .ldc = n, .m = tile_rows, .n = n, .accumulate = true};
  for (std::int64_t first = 0; first < rows; first += tile_rows) {
    tile.a = lower + first * kDeltaChunk + first;
    tile.b = from + first * n;
    tile.c = to + first * n;
    tile.k = rows - first;
    tile_gemm(tile);
  }
}

void lower_dots(const float* a, std::int64_t lda, const float* b_transposed, std::int64_t dim,
                std::int64_t rows, float* to) {
  TileGemm tile{
      .a_row = lda, .a_col = 1, .b = b_transposed, .ldb = kDeltaChunk, .ldc = kDeltaChunk, .m = 16, .k = dim};
  for (std::int64_t first = 0; first < rows; first += 16) {
    tile.a = a + first * lda;
    tile.c = to + first * kDeltaChunk;
    tile.n = first + 16;
    tile_gemm(tile);
  }
}

OCTET_SIMD void transpose_delta(const float* from, std::int64_t rows, std::int64_t cols, float* to,
                                std::int64_t to_ld) {
  for (std::int64_t r = 0; r < rows; r += 16) {
    for (std::int64_t c = 0; c < cols; c += 16) {
      for (std::int64_t j = 0; j < 16; ++j) {
        for (std::int64_t i = 0; i < 16; ++i) to[(c + j) * to_ld + r + i] = from[(r + i) * cols + c + j];
      }
    }
  }
}

OCTET_SIMD void scale_delta_rows(const float* factors, float sign, std::int64_t rows, std::int64_t n,
                                 float* x) {
  for (std::int64_t i = 0; i < rows; ++i) {
    const float factor = factors[i] * sign;
    for (std::int64_t j = 0; j < n; ++j) x[i * n + j] *= factor;
  }
}

void add_delta_rows(const float* factors, float sign, const float* x, std::int64_t rows, std::int64_t n,
                    float* to) {
  for (std::int64_t i = 0; i < rows; ++i) add_multiple(x + i * n, factors[i] * sign, n, to + i * n);
}

void check_delta_documents(const Documents& documents) {
  if (documents.count == 0) return;
  const std::int32_t* starts = documents.cu_seqlens;
  check(starts[0] == 0, "delta rule: the first document starts at token 0");
  for (std::int64_t d = 0; d < documents.count; ++d) {
    check(starts[d] <= starts[d + 1], "delta rule: no document ends before it starts");
  }
  check(starts[documents.count] <= documents.tokens, "delta rule: the documents end inside the tokens");
}

std::int64_t end_of_documents(const Documents& documents) {
  return documents.count > 0 ? documents.cu_seqlens[documents.count] : 0;
}

int delta_threads(const Workspace& workspace, std::size_t each) {
  const auto places = static_cast<std::int64_t>(workspace.bytes / each);
  check(places >= 1 && workspace.data != nullptr,
        "delta rule: the workspace holds delta_rule_workspace bytes");
  return static_cast<int>(std::min<std::int64_t>(places, octet::cpu::op_threads()));
}

}  // namespace octet::ops::cpu
