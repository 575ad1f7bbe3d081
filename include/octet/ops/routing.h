// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): which experts a token is sent to, and how
// what they make is put together. The experts' products are those of gemm.h and grouped_gemm.h.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// The most experts of a layer that tokens are dealt to.
inline constexpr std::int64_t kMostExperts = 1024;

/// experts[t, 0 … taken) = those with the largest softmax(logits[t]), the largest first, the lower number
/// where two are equal; a NaN counts as the largest. weights[t, …] = their probabilities, divided by their
/// sum if `normalised`; in fp32.
struct RouteArgs {
  ConstMatrix logits;      ///< [tokens, experts] f32, at most kMostExperts
  std::int64_t taken = 0;  ///< 1 to experts
  bool normalised = true;
  std::int32_t* experts = nullptr;  ///< [tokens, taken]
  float* weights = nullptr;         ///< [tokens, taken]
};
void route(Stream& stream, const RouteArgs& args);

/// Rows, one for each token and expert that it is sent to, in the order of the experts, and of an expert in
/// that of the tokens: those of expert e are [begins[e], begins[e + 1]). Of a token its rows come in the
/// order of their experts' numbers, which is that of transformers' sum. A token takes an expert once at most;
/// there are fewer than 2^31 rows.
struct DealArgs {
  const std::int32_t* experts = nullptr;  ///< [tokens, taken], as route() gives them
  const float* weights = nullptr;         ///< [tokens, taken]
  std::int64_t tokens = 0, taken = 0;
  std::int64_t count = 0;              ///< of experts, at most kMostExperts
  std::int32_t* begins = nullptr;      ///< [count + 1]
  std::int32_t* row_tokens = nullptr;  ///< [tokens * taken]: of each row its token
  std::int32_t* places = nullptr;      ///< [tokens, taken]: the rows of a token
  float* place_weights = nullptr;      ///< [tokens, taken]: the weights of the same
};
void deal(Stream& stream, const DealArgs& args);

/// out[t] = addend[t] + Σ_j weights[t, j] * x[places[t, j]], summed in fp32 in the order of j, the addend
/// last, and rounded once. `out` may lie where `addend` does; without data there is no addend.
struct WeightedRowsArgs {
  ConstMatrix x;  ///< [rows, cols] T
  std::int64_t taken = 0;
  const std::int32_t* places = nullptr;  ///< [tokens, taken] rows of x
  const float* weights = nullptr;        ///< [tokens, taken]
  ConstMatrix addend;                    ///< [tokens, cols] T
  Matrix out;                            ///< [tokens, cols] T
};
void weighted_rows(Stream& stream, const WeightedRowsArgs& args);

}  // namespace octet::ops
