// The gated delta rule by its recurrence in float64, with the adjoint of the recurrence, and shared code of
// its tests.
#pragma once

#include <algorithm>
#include <string>

#include "octet/ops/delta_rule.h"
#include "ops/tensor.h"

namespace octet::ops {

struct DeltaShape {
  std::vector<std::int32_t> lengths = {1};
  DeltaHeads heads = {1, 1, 16, 16};
  DType dtype = DType::f32;
  double decay = 0.1;      ///< size of -log_decay
  std::int64_t after = 0;  ///< tokens at the end that belong to no document
};

struct DeltaProblem {
  explicit DeltaProblem(const DeltaShape& s)
      : shape(s),
        starts(1, 0),
        qkv(Tensor::random(s.dtype, count(s), s.heads.qkv_width(), 1)),
        d_out(Tensor::random(s.dtype, count(s), s.heads.values(), 2)),
        log_decay(random_floats(count(s) * s.heads.value_heads, 3)),
        beta(random_floats(count(s) * s.heads.value_heads, 4)) {
    for (const auto length : s.lengths) starts.push_back(starts.back() + length);
    for (float& g : log_decay) g = static_cast<float>(-s.decay * std::exp(static_cast<double>(g)));
    for (float& b : beta) b = static_cast<float>(1 / (1 + std::exp(-static_cast<double>(b))));
  }
  static std::int64_t count(const DeltaShape& s) {
    std::int64_t sum = s.after;
    for (const auto length : s.lengths) sum += length;
    return sum;
  }
  std::int64_t tokens() const { return count(shape); }
  Documents documents() const {
    return {.cu_seqlens = starts.data(),
            .host_cu_seqlens = nullptr,
            .count = std::ssize(shape.lengths),
            .max_length =
                shape.lengths.empty() ? 0 : *std::max_element(shape.lengths.begin(), shape.lengths.end()),
            .tokens = tokens()};
  }
  DeltaShape shape;
  std::vector<std::int32_t> starts;
  Tensor qkv, d_out;
  std::vector<float> log_decay, beta;
};

/// Returns whether a call throws, or its work does. A stream with an error accepts no more work.
template <typename Call>
bool is_refused(const Call& call) {
  CpuStream stream;
  try {
    call(stream);
    static_cast<Stream&>(stream).synchronize();
  } catch (const std::logic_error&) {
    return true;
  }
  return false;
}

/// Scratch filled with NaN: no code may rely on zeros.
class DeltaWorkspace {
 public:
  DeltaWorkspace(Device& device, std::size_t bytes) : arena_(device) {
    workspace_.bytes = bytes;
    workspace_.data = arena_.reserve("workspace", std::max<std::size_t>(1, bytes));
    std::memset(workspace_.data, 0xFF, bytes);
  }
  operator Workspace() const { return workspace_; }

 private:
  Arena arena_;
  Workspace workspace_;
};

struct DeltaResult {
  Tensor out, d_qkv;
  std::vector<float> d_log_decay, d_beta;
};

/// Forward, then backward if `backward`.
inline DeltaResult run_delta(const DeltaProblem& p, int threads = 2, bool backward = true) {
  const DeltaHeads& heads = p.shape.heads;
  const DType dtype = p.shape.dtype;
  const std::int64_t tokens = p.tokens();
  const std::vector<float> nothing(p.beta.size(), std::nanf(""));
  DeltaResult r{.out = Tensor(dtype, tokens, heads.values()),
                .d_qkv = Tensor(dtype, tokens, heads.qkv_width()),
                .d_log_decay = nothing,
                .d_beta = nothing};
  CpuStream stream(threads);
  const DeltaWorkspace workspace(stream.device(),
                                 delta_rule_workspace(stream.device(), heads, dtype, tokens));
  std::vector<std::byte> states(
      static_cast<std::size_t>(delta_states(tokens) * heads.value_heads * heads.key_dim * heads.value_dim) *
          size_of(dtype),
      std::byte{0xFF});
  delta_rule(stream, {.qkv = p.qkv.matrix(),
                      .log_decay = p.log_decay.data(),
                      .beta = p.beta.data(),
                      .heads = heads,
                      .documents = p.documents(),
                      .out = r.out.matrix(),
                      .states = backward ? states.data() : nullptr,
                      .workspace = workspace});
  if (!backward) return r;
  delta_rule_backward(stream, {.qkv = p.qkv.matrix(),
                               .log_decay = p.log_decay.data(),
                               .beta = p.beta.data(),
                               .states = states.data(),
                               .d_out = p.d_out.matrix(),
                               .heads = heads,
                               .documents = p.documents(),
                               .d_qkv = r.d_qkv.matrix(),
                               .d_log_decay = r.d_log_decay.data(),
                               .d_beta = r.d_beta.data(),
                               .workspace = workspace});
  return r;
}

/// A vector of a head: normalised, and the gradient of the values that were normalised.
struct Unit64 {
  Unit64(const Tensor& x, std::int64_t row, std::int64_t col, std::int64_t dim, double times)
      : values(static_cast<std::size_t>(dim)), factor(times) {
    double squares = static_cast<double>(kDeltaNormEps);
    for (std::int64_t i = 0; i < dim; ++i) squares += x.at(row, col + i) * x.at(row, col + i);
    scale = times / std::sqrt(squares);
    for (std::int64_t i = 0; i < dim; ++i) values[static_cast<std::size_t>(i)] = scale * x.at(row, col + i);
  }
  void add_gradient(const std::vector<double>& d, double* to) const {
    double along = 0;
    for (std::size_t i = 0; i < d.size(); ++i) along += d[i] * values[i] / (factor * factor);
    for (std::size_t i = 0; i < d.size(); ++i) to[i] += scale * (d[i] - along * values[i]);
  }
  std::vector<double> values;
  double factor, scale = 0;
};

/// Results of the recurrence, [tokens][columns] without margins. Tokens outside of documents have zeros.
struct DeltaReference {
  explicit DeltaReference(const DeltaProblem& problem)
      : p(problem),
        out(static_cast<std::size_t>(p.tokens() * p.shape.heads.values())),
        d_qkv(static_cast<std::size_t>(p.tokens() * p.shape.heads.qkv_width())),
        d_log_decay(p.log_decay.size()),
        d_beta(p.beta.size()) {
    for (std::size_t d = 0; d + 1 < p.starts.size(); ++d) {
      for (std::int64_t h = 0; h < p.shape.heads.value_heads; ++h) head(p.starts[d], p.starts[d + 1], h);
    }
  }

  const DeltaProblem& p;
  std::vector<double> out, d_qkv, d_log_decay, d_beta;

 private:
  void head(std::int64_t start, std::int64_t end, std::int64_t h) {
    const DeltaHeads& heads = p.shape.heads;
    const std::int64_t K = heads.key_dim, V = heads.value_dim, group = heads.value_heads / heads.key_heads;
    const std::int64_t q_at = h / group * K, k_at = heads.keys() + q_at, v_at = 2 * heads.keys() + h * V;
    const auto size = static_cast<std::size_t>(K * V);
    std::vector<std::vector<double>> states{std::vector<double>(size)};
    std::vector<Unit64> q, k;
    std::vector<std::vector<double>> rest;  // v - Sᵀ k
    for (std::int64_t t = start; t < end; ++t) {
      q.emplace_back(p.qkv, t, q_at, K, 1 / std::sqrt(static_cast<double>(K)));
      k.emplace_back(p.qkv, t, k_at, K, 1.0);
      const double decay = std::exp(static_cast<double>(p.log_decay[gate(t, h)]));
      std::vector<double> S = states.back(), x(static_cast<std::size_t>(V));
      for (double& s : S) s *= decay;
      for (std::int64_t j = 0; j < V; ++j) {
        double& rest_j = x[static_cast<std::size_t>(j)];
        rest_j = p.qkv.at(t, v_at + j);
        for (std::int64_t i = 0; i < K; ++i)
          rest_j -= S[at(i, j)] * k.back().values[static_cast<std::size_t>(i)];
      }
      const double beta = static_cast<double>(p.beta[gate(t, h)]);
      for (std::int64_t i = 0; i < K; ++i) {
        const double k_i = k.back().values[static_cast<std::size_t>(i)],
                     q_i = q.back().values[static_cast<std::size_t>(i)];
        for (std::int64_t j = 0; j < V; ++j) {
          S[at(i, j)] += k_i * beta * x[static_cast<std::size_t>(j)];
          out[static_cast<std::size_t>(t * heads.values() + h * V + j)] += S[at(i, j)] * q_i;
        }
      }
      states.push_back(std::move(S));
      rest.push_back(std::move(x));
    }
    std::vector<double> d_S(size);
    for (std::int64_t t = end - 1; t >= start; --t) {
      const auto n = static_cast<std::size_t>(t - start);
      const std::vector<double>&S = states[n + 1], &before = states[n], &x = rest[n];
      const double decay = std::exp(static_cast<double>(p.log_decay[gate(t, h)])),
                   beta = static_cast<double>(p.beta[gate(t, h)]);
      std::vector<double> d_q(static_cast<std::size_t>(K)), d_k = d_q, d_u(static_cast<std::size_t>(V));
      for (std::int64_t i = 0; i < K; ++i) {
        const auto r = static_cast<std::size_t>(i);
        for (std::int64_t j = 0; j < V; ++j) {
          const double d_o = p.d_out.at(t, h * V + j);
          d_S[at(i, j)] += q[n].values[r] * d_o;
          d_q[r] += S[at(i, j)] * d_o;
          d_k[r] += d_S[at(i, j)] * beta * x[static_cast<std::size_t>(j)];
          d_u[static_cast<std::size_t>(j)] += d_S[at(i, j)] * k[n].values[r];
        }
      }
      double d_decay = 0;
      for (std::int64_t j = 0; j < V; ++j) {
        const auto c = static_cast<std::size_t>(j);
        d_beta[gate(t, h)] += d_u[c] * x[c];
        const double d_x = beta * d_u[c];
        d_qkv[static_cast<std::size_t>(t * heads.qkv_width() + v_at + j)] = d_x;
        for (std::int64_t i = 0; i < K; ++i) {
          const auto r = static_cast<std::size_t>(i);
          d_S[at(i, j)] -= k[n].values[r] * d_x;
          d_k[r] -= decay * before[at(i, j)] * d_x;
          d_decay += d_S[at(i, j)] * before[at(i, j)];
          d_S[at(i, j)] *= decay;
        }
      }
      d_log_decay[gate(t, h)] = decay * d_decay;
      double* row = d_qkv.data() + t * heads.qkv_width();
      q[n].add_gradient(d_q, row + q_at);
      k[n].add_gradient(d_k, row + k_at);
    }
  }

  std::size_t at(std::int64_t i, std::int64_t j) const {
    return static_cast<std::size_t>(i * p.shape.heads.value_dim + j);
  }
  std::size_t gate(std::int64_t t, std::int64_t h) const {
    return static_cast<std::size_t>(t * p.shape.heads.value_heads + h);
  }
};

/// Largest |found - want| of columns [first, last) of some rows, relative to the largest |want| there.
inline double delta_distance(const Tensor& found, const std::vector<double>& want, std::int64_t row,
                             std::int64_t last_row, std::int64_t first, std::int64_t last) {
  double worst = 0, size = 1e-30;
  for (std::int64_t r = row; r < last_row; ++r) {
    for (std::int64_t c = first; c < last; ++c) {
      const double w = want[static_cast<std::size_t>(r * found.cols() + c)];
      const double difference = std::abs(found.at(r, c) - w);
      worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
      size = std::max(size, std::abs(w));
    }
  }
  return worst / size;
}
inline double delta_distance(const std::vector<float>& found, const std::vector<double>& want,
                             std::int64_t first, std::int64_t last) {
  double worst = 0, size = 1e-30;
  for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(last); ++i) {
    const double difference = std::abs(static_cast<double>(found[i]) - want[i]);
    worst = std::isnan(difference) ? INFINITY : std::max(worst, difference);
    size = std::max(size, std::abs(want[i]));
  }
  return worst / size;
}

inline std::string words_of(const DeltaShape& shape) {
  std::string words = "heads " + std::to_string(shape.heads.key_heads) + "/" +
                      std::to_string(shape.heads.value_heads) + " of " + std::to_string(shape.heads.key_dim) +
                      "/" + std::to_string(shape.heads.value_dim) + ", decay " + std::to_string(shape.decay) +
                      ", " + std::string(name_of(shape.dtype)) + ", lengths";
  for (const auto length : shape.lengths) words += " " + std::to_string(length);
  return words;
}

}  // namespace octet::ops
