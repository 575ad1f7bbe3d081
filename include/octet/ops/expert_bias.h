// Biases of the experts of a mixture: one vector per expert, for rows in the order of their experts.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// x[r] += bias[e] for every expert e and its rows begins[e] <= r < begins[e + 1], in fp32, rounded to T.
/// Other rows of x do not change.
struct ExpertBiasArgs {
  Matrix x;                              ///< [rows, cols] T
  const float* bias = nullptr;           ///< [count, cols]
  std::int64_t count = 0;                ///< experts
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to at most the rows of x
};
void expert_bias(Stream& stream, const ExpertBiasArgs& args);

/// d_bias[e] += Σ_r d_y[r] over the rows of expert e, in an order that depends only on their number.
struct ExpertBiasBackwardArgs {
  ConstMatrix d_y;  ///< [rows, cols] T
  std::int64_t count = 0;
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to at most the rows of d_y
  float* d_bias = nullptr;               ///< [count, cols]
};
void expert_bias_backward(Stream& stream, const ExpertBiasBackwardArgs& args);

/// d_weights[r] += bias[e] · d_tokens[row_tokens[r]] for every expert e and its rows r: the part of the bias
/// in the gradients of the weights of rows (weigh_backward() in routing.h).
struct ExpertBiasWeightsArgs {
  ConstMatrix d_tokens;                      ///< [tokens, cols] T: gradients of sums of weighted rows
  const std::int32_t* row_tokens = nullptr;  ///< [rows]
  std::int64_t rows = 0;
  const float* bias = nullptr;  ///< [count, cols]
  std::int64_t count = 0;
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to `rows`
  float* d_weights = nullptr;            ///< [rows]
};
void expert_bias_weights(Stream& stream, const ExpertBiasWeightsArgs& args);

}  // namespace octet::ops
