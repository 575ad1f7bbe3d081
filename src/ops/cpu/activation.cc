#include "octet/ops/activation.h"

#include <cmath>

#include "cpu/activations.h"
#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"
#include "xielu_rule.h"

namespace octet::ops::cpu {
namespace {

/// Adds the terms of both alphas of a chunk; only xIELU has them.
struct NoSums {
  OCTET_INLINE void add_sums(const float*, const float*, std::int64_t, Lanes&, Lanes&) const {}
};
struct SiluAlone : Silu, NoSums {};
struct GeluTanhAlone : GeluTanh, NoSums {};

struct XieluAlone {
  XieluRule rule;
  OCTET_INLINE float value(float x) const { return rule.value(x, simd::exp(rule.bounded(x))); }
  OCTET_INLINE void both(float x, float& value, float& slope) const {
    const float power = simd::exp(rule.bounded(x));
    value = rule.value(x, power);
    slope = rule.slope(x, power);
  }
  OCTET_INLINE void add_sums(const float* x, const float* d, std::int64_t n, Lanes& of_p, Lanes& of_n) const {
    add_terms(
        of_p, n, [&](std::int64_t i) __attribute__((always_inline)) { return d[i] * rule.of_p(x[i]); });
    add_terms(
        of_n, n, [&](std::int64_t i) __attribute__((always_inline)) {
          return d[i] * rule.of_n(x[i], simd::exp(rule.bounded(x[i])));
        });
  }
};

float softplus(float x) {
  return x > 20.0f ? x : static_cast<float>(std::log1p(std::exp(static_cast<double>(x))));
}

/// The derivative of softplus().
double sigmoid_of(float x) {
  return 1.0 / (1.0 + std::exp(-static_cast<double>(x)));
}

XieluAlone rule_of(const Xielu& x) {
  return {{.p = softplus(*x.alpha_p), .n = *x.beta + softplus(*x.alpha_n), .beta = *x.beta, .eps = *x.eps}};
}

template <typename F>
void with_activation(Activation activation, const Xielu& xielu, F f) {
  if (activation == Activation::silu) return f(SiluAlone{});
  if (activation == Activation::gelu_tanh) return f(GeluTanhAlone{});
  f(rule_of(xielu));
}

template <typename T, typename A>
OCTET_SIMD void activate_row(const ActivationArgs& a, const A& act, RowQuantizer& quantizer,
                             std::int64_t row) {
  const std::int64_t width = a.x.cols;
  const T* x = row_of<T>(a.x, row);
  float h[kChunk];
  for (std::int64_t c = 0; c < width; c += kChunk) {
    const std::int64_t n = chunk_length(c, width);
    for (std::int64_t i = 0; i < n; ++i) h[i] = simd::rounded_to<T>(act.value(simd::load(x[c + i])));
    if (a.out.data) store(h, row_of<T>(a.out, row) + c, n);
    quantizer.take(h, row, c, n);
  }
  quantizer.finish_row();
}

/// `sums`: of the gradients of p and n, added to; null: not computed.
template <typename T, typename A>
OCTET_SIMD void activate_back_row(const ActivationBackwardArgs& a, const A& act, RowQuantizer& quantizer,
                                  std::int64_t row, double* sums) {
  const std::int64_t width = a.x.cols;
  const T* x = row_of<T>(a.x, row);
  const T* d_out = row_of<T>(a.d_out, row);
  T* d_x = a.d_x.data ? row_of<T>(a.d_x, row) : nullptr;
  float xs[kChunk], ds[kChunk], d[kChunk];
  Lanes of_p, of_n;
  for (std::int64_t c = 0; c < width; c += kChunk) {
    const std::int64_t n = chunk_length(c, width);
    load(x + c, xs, n);
    load(d_out + c, ds, n);
    for (std::int64_t i = 0; i < n; ++i) {
      float value, slope;
      act.both(xs[i], value, slope);
      d[i] = simd::rounded_to<T>(ds[i] * slope);
    }
    if (sums) act.add_sums(xs, ds, n, of_p, of_n);
    if (d_x) store(d, d_x + c, n);
    quantizer.take(d, row, c, n);
  }
  quantizer.finish_row();
  if (!sums) return;
  sums[0] += static_cast<double>(total(of_p));
  sums[1] += static_cast<double>(total(of_n));
}

}  // namespace

void activation(const ActivationArgs& a) {
  with_type(a.x.dtype, [&](auto type) {
    with_activation(a.activation, a.xielu, [&](auto act) {
      simd::parallel_rows(a.x.rows, 8 * a.x.cols, [&](std::int64_t begin, std::int64_t end) {
        RowQuantizer quantizer(a.quantize, a.x.rows, a.x.cols);
        for (std::int64_t r = begin; r < end; ++r) activate_row<decltype(type)>(a, act, quantizer, r);
      });
    });
  });
}

void activation_backward(const ActivationBackwardArgs& a) {
  const std::int64_t rows = a.x.rows;
  const std::int64_t block = rms_norm_backward_block(rows), blocks = (rows + block - 1) / block;
  auto* const sums = a.d_alpha_p || a.d_alpha_n ? static_cast<double*>(a.workspace.data) : nullptr;
  with_type(a.x.dtype, [&](auto type) {
    with_activation(a.activation, a.xielu, [&](auto act) {
      simd::parallel_rows(blocks, 10 * block * a.x.cols, [&](std::int64_t first, std::int64_t last) {
        RowQuantizer quantizer(a.quantize, rows, a.x.cols);
        for (std::int64_t b = first; b < last; ++b) {
          double* const own = sums ? sums + 2 * b : nullptr;
          if (own) own[0] = own[1] = 0;
          const std::int64_t end = std::min(rows, (b + 1) * block);
          for (std::int64_t r = b * block; r < end; ++r)
            activate_back_row<decltype(type)>(a, act, quantizer, r, own);
        }
      });
    });
  });
  const auto add_up = [&](int which, const float* alpha, float* to) {
    if (!to) return;
    double sum = 0;
    for (std::int64_t b = 0; b < blocks; ++b) sum += sums[2 * b + which];
    *to += static_cast<float>(sum * sigmoid_of(*alpha));
  };
  add_up(0, a.xielu.alpha_p, a.d_alpha_p);
  add_up(1, a.xielu.alpha_n, a.d_alpha_n);
}

}  // namespace octet::ops::cpu
