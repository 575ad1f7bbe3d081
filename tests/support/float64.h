// GEMMs and attention as their definitions have them, in float64. Tests of the CPU side and of the GPU side
// compare with them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "octet/ops/attention.h"
#include "octet/ops/gemm.h"

namespace octet::test {

/// A sum of terms, of their absolute values and of their squares. The last two bound an op's rounding.
struct Dot {
  double sum = 0, size = 0, squares = 0;
};

/// Returns the dot product of x(0), x(1), ... and y(0), y(1), ...
template <typename X, typename Y>
Dot dot(std::int64_t count, const X& x, const Y& y) {
  Dot result;
  for (std::int64_t l = 0; l < count; ++l) {
    const double term = double{x(l)} * double{y(l)};
    result.sum += term;
    result.size += std::abs(term);
    result.squares += term * term;
  }
  return result;
}

/// Returns element [i, j] of a GEMM of [m, n, k] without scales and addends. a(at) and b(at) are the values
/// at a position of the operands.
template <typename A, typename B>
Dot gemm_element(ops::GemmKind gemm_kind, std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t i,
                 std::int64_t j, const A& a, const B& b) {
  const bool wgrad = gemm_kind == ops::GemmKind::wgrad, forward = gemm_kind == ops::GemmKind::forward;
  return dot(
      k, [&](std::int64_t l) { return a(wgrad ? l * m + i : i * k + l); },
      [&](std::int64_t l) { return b(forward ? j * k + l : l * n + j); });
}

/// The documents and options of causal attention.
struct AttentionShape {
  ops::Heads heads;
  std::vector<std::int32_t> starts;  ///< of each document, and the end of the last one
  std::int64_t tokens = 0;
  double scale = 1, soft_cap = 0;
  std::int64_t window = 0;
};

struct AttentionReference {
  std::vector<double> out, lse, d_qkv;
};

/// Returns the results of attention and of its backward pass. qkv(at) and d_out(at) are the values at a
/// position.
template <typename Qkv, typename DOut>
AttentionReference attention_reference(const AttentionShape& shape, const Qkv& qkv, const DOut& d_out) {
  const ops::Heads& h = shape.heads;
  const std::int64_t d = h.head_dim, width = h.q_heads * d, ld = h.qkv_width();
  AttentionReference r{.out = std::vector<double>(static_cast<std::size_t>(shape.tokens * width)),
                       .lse = std::vector<double>(static_cast<std::size_t>(h.q_heads * shape.tokens)),
                       .d_qkv = std::vector<double>(static_cast<std::size_t>(shape.tokens * ld))};
  std::vector<double> x(r.d_qkv.size()), g(r.out.size());
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = qkv(static_cast<std::int64_t>(i));
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = d_out(static_cast<std::int64_t>(i));
  std::vector<double> weight, slope, d_weight;
  for (std::size_t document = 0; document + 1 < shape.starts.size(); ++document) {
    for (std::int64_t head = 0; head < h.q_heads; ++head) {
      const std::int64_t kv = head / (h.q_heads / h.kv_heads);
      const std::int64_t k_at = (h.q_heads + kv) * d, v_at = k_at + h.kv_heads * d;
      for (std::int64_t i = shape.starts[document]; i < shape.starts[document + 1]; ++i) {
        std::int64_t first = shape.starts[document];
        if (shape.window > 0) first = std::max(first, i - shape.window + 1);
        const auto seen = static_cast<std::size_t>(i - first + 1);
        const auto row = [&](std::size_t j, std::int64_t column) {
          return static_cast<std::size_t>((first + static_cast<std::int64_t>(j)) * ld + column);
        };
        weight.assign(seen, 0);
        slope.assign(seen, 1);
        d_weight.assign(seen, 0);
        const double* q = &x[static_cast<std::size_t>(i * ld + head * d)];
        const double* out_gradient = &g[static_cast<std::size_t>(i * width + head * d)];
        double* out = &r.out[static_cast<std::size_t>(i * width + head * d)];
        double highest = -INFINITY, sum = 0, delta = 0;
        for (std::size_t j = 0; j < seen; ++j) {
          const double* k = &x[row(j, k_at)];
          double s = 0;
          for (std::int64_t l = 0; l < d; ++l) s += q[l] * k[l];
          s *= shape.scale;
          if (shape.soft_cap > 0) {
            const double t = std::tanh(s / shape.soft_cap);
            s = shape.soft_cap * t;
            slope[j] = 1 - t * t;
          }
          weight[j] = s;
          highest = std::max(highest, s);
        }
        for (const double s : weight) sum += std::exp(s - highest);
        const double lse = highest + std::log(sum);
        r.lse[static_cast<std::size_t>(head * shape.tokens + i)] = lse;
        for (std::size_t j = 0; j < seen; ++j) {
          const std::size_t v = row(j, v_at);
          weight[j] = std::exp(weight[j] - lse);
          for (std::int64_t l = 0; l < d; ++l) {
            const std::size_t at = v + static_cast<std::size_t>(l);
            out[l] += weight[j] * x[at];
            d_weight[j] += out_gradient[l] * x[at];
            r.d_qkv[at] += weight[j] * out_gradient[l];
          }
          delta += weight[j] * d_weight[j];
        }
        double* d_q = &r.d_qkv[static_cast<std::size_t>(i * ld + head * d)];
        for (std::size_t j = 0; j < seen; ++j) {
          const std::size_t k = row(j, k_at);
          const double ds = weight[j] * (d_weight[j] - delta) * slope[j] * shape.scale;
          for (std::int64_t l = 0; l < d; ++l) {
            d_q[l] += ds * x[k + static_cast<std::size_t>(l)];
            r.d_qkv[k + static_cast<std::size_t>(l)] += ds * q[l];
          }
        }
      }
    }
  }
  return r;
}

}  // namespace octet::test
