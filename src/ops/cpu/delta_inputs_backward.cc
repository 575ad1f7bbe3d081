// Backward of delta_inputs(). One thread goes through all tokens for a piece of channels, or for a value
// head. So sums over tokens need no scratch, and their order depends on the number of tokens alone.
#include <algorithm>

#include "cpu/activations.h"
#include "cpu/delta_chunk.h"
#include "cpu/delta_conv.h"
#include "cpu/rows.h"
#include "delta_gate_rule.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

/// Tokens of a partial sum.
constexpr std::int64_t kTapTokens = 256;

/// Gradients of the taps of a piece, as in ConvTaps: sums over kTapTokens tokens, and their sum.
struct TapSums {
  float part[kDeltaTaps][kConvPiece] = {};
  float whole[kDeltaTaps][kConvPiece] = {};
  std::int64_t block = 0;  ///< of `part`

  OCTET_INLINE void begin(std::int64_t token) {
    if (token / kTapTokens == block) return;
    finish_part();
    block = token / kTapTokens;
  }
  OCTET_INLINE void finish_part() {
    for (std::int64_t s = 0; s < kDeltaTaps; ++s) {
      for (std::int64_t i = 0; i < kConvPiece; ++i) {
        whole[s][i] += part[s][i];
        part[s][i] = 0.0f;
      }
    }
  }
};

/// d_pre = d_y * silu'(pre). `pre` is the output of the convolution.
template <typename T>
OCTET_INLINE void silu_gradient(const T* __restrict d_y, const float* __restrict pre, std::int64_t n,
                                float* __restrict d_pre) {
  for (std::int64_t i = 0; i < n; ++i) {
    float value, slope;
    Silu::both(pre[i], value, slope);
    d_pre[i] = simd::load(d_y[i]) * slope;
  }
}

/// sum += d * x
template <typename T>
OCTET_INLINE void add_terms_of(const float* __restrict d, const T* __restrict x, std::int64_t n,
                               float* __restrict sum) {
  for (std::int64_t i = 0; i < n; ++i) sum[i] = simd::fmadd(d[i], simd::load(x[i]), sum[i]);
}

/// Channels of a piece for the document [start, end).
template <typename T>
OCTET_SIMD void convolve_backward(const DeltaInputsBackwardArgs& a, const ConvPiece& piece,
                                  std::int64_t start, std::int64_t end, TapSums& sums) {
  const ConvTaps taps(a.taps, piece);
  const std::int64_t n = piece.count;
  float d_pre[kDeltaTaps][kConvPiece];  // of the last tokens: token t has row t % kDeltaTaps
  for (std::int64_t t = start; t < end + kDeltaTaps - 1; ++t) {
    if (t < end) {
      float pre[kConvPiece] = {};
      float* d = d_pre[t % kDeltaTaps];
      const std::int64_t oldest = std::min(kDeltaTaps - 1, t - start);
      for (std::int64_t s = oldest; s >= 0; --s) {
        add_tap(taps.ago[s], row_of<T>(a.projected, t - s) + piece.column, n, pre);
      }
      silu_gradient(row_of<T>(a.d_qkv, t) + piece.channel, pre, n, d);
      sums.begin(t);
      for (std::int64_t s = 0; s <= oldest; ++s) {
        add_terms_of(d, row_of<T>(a.projected, t - s) + piece.column, n, sums.part[s]);
      }
    }
    const std::int64_t done = t - (kDeltaTaps - 1);
    if (done < start) continue;
    float d_x[kConvPiece] = {};
    for (std::int64_t s = 0; s < kDeltaTaps && done + s < end; ++s) {
      add_tap(taps.ago[s], d_pre[(done + s) % kDeltaTaps], n, d_x);
    }
    store(d_x, row_of<T>(a.d_projected, done) + piece.column, n);
  }
}

template <typename T>
void backward_of_piece(const DeltaInputsBackwardArgs& a, const ConvPiece& piece) {
  TapSums sums;
  for (std::int64_t d = 0; d < a.documents.count; ++d) {
    convolve_backward<T>(a, piece, a.documents.cu_seqlens[d], a.documents.cu_seqlens[d + 1], sums);
  }
  for (std::int64_t t = end_of_documents(a.documents); t < a.d_projected.rows; ++t) {
    T* row = row_of<T>(a.d_projected, t) + piece.column;
    std::fill(row, row + piece.count, T{});
  }
  if (a.d_taps == nullptr) return;
  sums.finish_part();
  for (std::int64_t s = 0; s < kDeltaTaps; ++s) {
    for (std::int64_t i = 0; i < piece.count; ++i) {
      a.d_taps[(piece.channel + i) * kDeltaTaps + kDeltaTaps - 1 - s] += sums.whole[s][i];
    }
  }
}

template <typename T>
void backward_of_gates(const DeltaInputsBackwardArgs& a, std::int64_t head) {
  const std::int64_t end = end_of_documents(a.documents);
  const std::int64_t column_a = a.columns.a(head), column_b = a.columns.b(head);
  double d_a_log = 0, d_dt_bias = 0;
  for (std::int64_t t = 0; t < a.d_projected.rows; ++t) {
    T* to = row_of<T>(a.d_projected, t);
    if (t >= end) {
      to[column_a] = to[column_b] = T{};
      continue;
    }
    const T* row = row_of<T>(a.projected, t);
    const std::int64_t at = t * a.columns.heads.value_heads + head;
    const float gate = simd::load(row[column_a]);
    const auto d_decay = static_cast<double>(a.d_log_decay[at]), d_beta = static_cast<double>(a.d_beta[at]);
    const double d_a = d_decay * delta_decay_slope(a.a_log[head], gate, a.dt_bias[head]);
    d_a_log += d_decay * delta_decay(a.a_log[head], gate, a.dt_bias[head]);
    d_dt_bias += d_a;
    simd::store(to[column_a], static_cast<float>(d_a));
    simd::store(to[column_b], static_cast<float>(d_beta * delta_beta_slope(simd::load(row[column_b]))));
  }
  if (a.d_a_log != nullptr) a.d_a_log[head] += static_cast<float>(d_a_log);
  if (a.d_dt_bias != nullptr) a.d_dt_bias[head] += static_cast<float>(d_dt_bias);
}

}  // namespace

void delta_inputs_backward(const DeltaInputsBackwardArgs& a) {
  check_delta_documents(a.documents);
  const std::vector<ConvPiece> pieces = conv_pieces(a.columns);
  const std::int64_t tokens = a.projected.rows;
  with_type(a.projected.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_pieces(std::ssize(pieces), 32 * kConvPiece * tokens, [&](std::int64_t piece) {
      backward_of_piece<T>(a, pieces[static_cast<std::size_t>(piece)]);
    });
    simd::parallel_rows(a.columns.heads.value_heads, 100 * tokens,
                        [&](std::int64_t first, std::int64_t last) {
                          for (std::int64_t head = first; head < last; ++head) backward_of_gates<T>(a, head);
                        });
  });
}

}  // namespace octet::ops::cpu
