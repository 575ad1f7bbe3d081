// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): which experts a token is sent to, and how
// what they make is put together. The experts' products are those of gemm.h and grouped_gemm.h.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// The most experts of a layer that tokens are dealt to.
inline constexpr std::int64_t kMostExperts = 1024;
/// Partial sums that add_load() makes on a GPU.
inline constexpr std::int64_t kLoadParts = 64;

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

/// Adds the load of a layer to counts[e] (rows of expert e) and probabilities[e] (Σ over tokens of
/// softmax(logits[t])[e], in an order that the number of tokens decides). Both are sums of doubles.
struct AddLoadArgs {
  ConstMatrix logits;                    ///< [tokens, experts] f32
  const std::int32_t* begins = nullptr;  ///< [experts + 1], as deal() gives them
  double* counts = nullptr;              ///< [experts]
  double* probabilities = nullptr;       ///< [experts]
  Workspace workspace;                   ///< at least add_load_workspace() bytes
};
std::size_t add_load_workspace(const Device& device, std::int64_t experts);
void add_load(Stream& stream, const AddLoadArgs& args);

/// The load-balancing loss (Fedus et al. 2021, arXiv:2101.03961) as transformers computes it from the routers
/// of all layers: coefficient * experts * Σ_e counts[e] / rows * probabilities[e] / rows. Adds its product
/// with the number of targets of at least 0 to *loss_sum, and writes the gradient of this for
/// softmax(logits[t])[e] of any token t.
struct BalanceLossArgs {
  const double* counts = nullptr;         ///< [experts], as add_load() sums them over all layers
  const double* probabilities = nullptr;  ///< [experts], likewise
  std::int64_t count = 0;                 ///< experts
  std::int64_t rows = 0;                  ///< layers with experts, times tokens
  double coefficient = 0;
  const std::int32_t* targets = nullptr;  ///< [labels]
  std::int64_t labels = 0;
  double* loss_sum = nullptr;
  float* d_probabilities = nullptr;  ///< [experts]
};
void balance_loss(Stream& stream, const BalanceLossArgs& args);

/// The gradient of route(): from that of the weights to that of the logits. `d_weights` has the rows of
/// deal().
struct RouteBackwardArgs {
  ConstMatrix logits;  ///< [tokens, experts] f32, as route() read them
  std::int64_t taken = 0;
  bool normalised = true;
  const std::int32_t* experts = nullptr;   ///< [tokens, taken], as route() gives them
  const std::int32_t* places = nullptr;    ///< [tokens, taken], as deal() gives them
  const float* d_weights = nullptr;        ///< [tokens * taken], by row
  const float* d_probabilities = nullptr;  ///< [experts], added for each token; null: nothing
  Matrix d_logits;                         ///< [tokens, experts] f32 or bf16
};
void route_backward(Stream& stream, const RouteBackwardArgs& args);

/// The gradient of weighted_rows() for its weights and, through the GEMM y = x · Wᵀ before it, for x:
/// d_weights[r] = x[r] · d[r], if d = d_y · W for unweighted rows d_y of the gradient. Then row r of `d`, and
/// of `d_y` if it has data, is multiplied by the weight of the row.
struct WeighBackwardArgs {
  ConstMatrix x;  ///< [tokens * taken, width] T
  Matrix d;       ///< of the shape of x, T
  Matrix d_y;     ///< [tokens * taken, out] T, or no data
  std::int64_t tokens = 0, taken = 0;
  const std::int32_t* places = nullptr;  ///< [tokens, taken], as deal() gives them
  const float* weights = nullptr;        ///< [tokens, taken], likewise
  float* d_weights = nullptr;            ///< [tokens * taken], by row
};
void weigh_backward(Stream& stream, const WeighBackwardArgs& args);

/// out[t] = addend[t] + sigmoid(logits[t]) * x[t], in fp32, rounded once: the sum with the output of an
/// expert that each token takes. `out` may be `addend`.
struct GatedRowsArgs {
  const float* logits = nullptr;  ///< [tokens]
  ConstMatrix x;                  ///< [tokens, cols] T
  ConstMatrix addend;             ///< [tokens, cols] T
  Matrix out;                     ///< [tokens, cols] T
};
void gated_rows(Stream& stream, const GatedRowsArgs& args);

/// The gradient of gated_rows() for x, and for the logits, rounded to T.
struct GatedRowsBackwardArgs {
  const float* logits = nullptr;
  ConstMatrix x, d_out;  ///< [tokens, cols] T
  Matrix d_x;            ///< [tokens, cols] T
  Matrix d_logits;       ///< [tokens, 1] T
};
void gated_rows_backward(Stream& stream, const GatedRowsBackwardArgs& args);

/// out[t] = addend[t] + Σ_j weights[t, j] * x[places[t, j]], summed in fp32 in the order of j, the addend
/// last, and rounded once. `out` may be `addend`; without data there is no addend. Without
/// weights, as in backward, each weight is 1.
struct WeightedRowsArgs {
  ConstMatrix x;  ///< [rows, cols] T
  std::int64_t taken = 0;
  const std::int32_t* places = nullptr;  ///< [tokens, taken] rows of x
  const float* weights = nullptr;        ///< [tokens, taken] or null
  ConstMatrix addend;                    ///< [tokens, cols] T
  Matrix out;                            ///< [tokens, cols] T
};
void weighted_rows(Stream& stream, const WeightedRowsArgs& args);

}  // namespace octet::ops
