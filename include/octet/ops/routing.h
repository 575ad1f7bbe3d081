// A mixture of experts (Shazeer et al. 2017, arXiv:1701.06538): the choice of experts for each token, and the
// weighted sum of the experts' outputs. The GEMMs of the experts are in gemm.h, expert_gemm.h and
// expert_gemm.h.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// The maximum number of routed experts of a layer.
inline constexpr std::int64_t kMostExperts = 1024;
/// Number of partial sums of add_load() on a GPU.
inline constexpr std::int64_t kLoadParts = 64;

/// The function that makes scores of experts from logits of a token. sigmoid: 1 / (1 + exp(-x)), computed in
/// double and rounded once, so that devices nearly always agree.
enum class RouterScores { softmax, sigmoid };
/// Is added to the sum of a token's scores before weights are divided by it, as in transformers. The selected
/// scores can all be 0 in fp32.
inline constexpr float kLeastScores = 1e-20f;

/// Selects experts[t, 0 … taken): the experts with the largest score(logits[t]) + bias, in descending order.
/// If two are equal, the lower number is first. A NaN counts as the largest. weights[t, …] are their scores
/// without bias, divided by their sum if `normalised`, times `scale`. Computed in fp32.
///
/// A token with given[t, 0] >= 0 selects the experts given[t, …] in their order instead, which are distinct.
///
/// With several groups of consecutive experts, only experts of the `taken_groups` best groups are selected
/// (DeepSeek-V3, arXiv:2412.19437). A group counts as much as the sum of its `group_best` best scores with
/// bias: two in DeepSeek-V3, one in DeepSeek-V2 (arXiv:2405.04434).
struct RouteArgs {
  ConstMatrix logits;      ///< [tokens, experts] f32, at most kMostExperts
  std::int64_t taken = 0;  ///< 1 to experts of the selected groups
  bool normalised = true;
  RouterScores scores = RouterScores::softmax;
  float scale = 1.0f;
  const float* bias = nullptr;          ///< [experts]; null: none
  std::int64_t groups = 1;              ///< divides experts; a group has at least two if there are several
  std::int64_t taken_groups = 1;        ///< 1 to groups
  int group_best = 2;                   ///< 1 or 2
  const std::int32_t* given = nullptr;  ///< [tokens, taken]; null: all tokens choose
  std::int32_t* experts = nullptr;      ///< [tokens, taken]
  float* weights = nullptr;             ///< [tokens, taken]
};
void route(Stream& stream, const RouteArgs& args);

/// Orders rows by expert. There is one row for each token and each of its experts. The rows of expert e are
/// [begins[e], begins[e + 1]), in the order of their tokens. The rows of a token, in `places`, are ordered by
/// expert number, which is the order of the sum in transformers. A token selects an expert at most once.
/// There are fewer than 2^31 rows. A choice that limit_rows() dropped has no row: its place is -1, and its
/// weight is 0.
struct DealArgs {
  const std::int32_t* experts = nullptr;  ///< [tokens, taken], as route() or limit_rows() gives them
  const float* weights = nullptr;         ///< [tokens, taken]
  std::int64_t tokens = 0, taken = 0;
  std::int64_t count = 0;              ///< number of experts, at most kMostExperts
  std::int32_t* begins = nullptr;      ///< [count + 1]
  std::int32_t* row_tokens = nullptr;  ///< [tokens * taken]: the token of each row
  std::int32_t* places = nullptr;      ///< [tokens, taken]: the rows of a token
  float* place_weights = nullptr;      ///< [tokens, taken]: the weights of `places`
};
void deal(Stream& stream, const DealArgs& args);

/// Limits the rows of each expert to `capacity`. An expert keeps its rows with the largest weights. If
/// weights are equal, it keeps rows of the first tokens. A NaN counts as the largest. Replaces experts[t, j]
/// of dropped rows by -1 - experts[t, j]. Call deal() before, for `begins` and `row_tokens`, and again
/// afterwards.
struct LimitRowsArgs {
  std::int32_t* experts = nullptr;  ///< [tokens, taken], as route() gives them
  const float* weights = nullptr;   ///< [tokens, taken]
  std::int64_t taken = 0;
  std::int64_t count = 0;                    ///< number of experts
  std::int64_t capacity = 0;                 ///< at least 1
  const std::int32_t* begins = nullptr;      ///< [count + 1]
  const std::int32_t* row_tokens = nullptr;  ///< [rows]
};
void limit_rows(Stream& stream, const LimitRowsArgs& args);

/// Adds the load of a layer to counts[e] (rows of expert e) and probabilities[e] (Σ over tokens of
/// softmax(logits[t])[e]). Both are sums of doubles. The order of the sum over tokens depends only on the
/// number of tokens.
struct AddLoadArgs {
  ConstMatrix logits;                    ///< [tokens, experts] f32
  const std::int32_t* begins = nullptr;  ///< [experts + 1], as deal() gives them
  double* counts = nullptr;              ///< [experts]
  double* probabilities = nullptr;       ///< [experts]
  Workspace workspace;                   ///< at least add_load_workspace() bytes
};
std::size_t add_load_workspace(const Device& device, std::int64_t experts);
void add_load(Stream& stream, const AddLoadArgs& args);

/// Load-balancing loss (Fedus et al. 2021, arXiv:2101.03961), computed like in transformers from the routers
/// of all layers: coefficient * experts * Σ_e counts[e] / rows * probabilities[e] / rows. Multiplies the loss
/// by the number of targets >= 0 and adds the result to *loss_sum. Writes the gradient of the result for
/// softmax(logits[t])[e], which is equal for all tokens t.
struct BalanceLossArgs {
  const double* counts = nullptr;         ///< [experts], sums of add_load() over all layers
  const double* probabilities = nullptr;  ///< [experts], likewise
  std::int64_t count = 0;                 ///< number of experts
  std::int64_t rows = 0;                  ///< number of layers with experts, times the number of tokens
  double coefficient = 0;
  const std::int32_t* targets = nullptr;  ///< [labels]
  std::int64_t labels = 0;
  double* loss_sum = nullptr;
  float* d_probabilities = nullptr;  ///< [experts]
};
void balance_loss(Stream& stream, const BalanceLossArgs& args);

/// Adds Σ over tokens of (ln Σ_e exp(logits[t, e]))^2 to *sum. The logarithms are in fp32, the sum is in
/// double. The order of the sum over tokens depends only on the number of tokens.
struct AddLogSumsArgs {
  ConstMatrix logits;     ///< [tokens, experts] f32
  double* sum = nullptr;  ///< [1]
  Workspace workspace;    ///< at least add_log_sums_workspace() bytes
};
std::size_t add_log_sums_workspace(const Device& device);
void add_log_sums(Stream& stream, const AddLogSumsArgs& args);

/// Loss on the size of a router's logits, the z-loss (Zoph et al. 2022, arXiv:2202.08906): coefficient *
/// *sum / tokens. Multiplies the loss by the number of targets >= 0 and adds the result to *loss_sum. Writes
/// the factor of the result's gradient: the gradient for logits[t, e] is *slope * ln Σ exp(logits[t]) *
/// softmax(logits[t])[e].
struct ZLossArgs {
  const double* sum = nullptr;  ///< [1], of add_log_sums() over all layers
  std::int64_t tokens = 0;      ///< of one layer
  double coefficient = 0;
  const std::int32_t* targets = nullptr;  ///< [labels]
  std::int64_t labels = 0;
  double* loss_sum = nullptr;
  float* slope = nullptr;  ///< [1]
};
void z_loss(Stream& stream, const ZLossArgs& args);

/// Backward of route(): computes the gradient of the logits from the gradient of the weights. The rows of
/// `d_weights` are in the order of deal(). The choice has no gradient, and neither has the bias. The weight
/// of a choice without a row has a gradient of 0.
struct RouteBackwardArgs {
  ConstMatrix logits;  ///< [tokens, experts] f32, as route() read them
  std::int64_t taken = 0;
  bool normalised = true;
  RouterScores scores = RouterScores::softmax;
  float scale = 1.0f;
  const std::int32_t* experts = nullptr;  ///< [tokens, taken], from route() or limit_rows()
  const std::int32_t* places = nullptr;   ///< [tokens, taken], from deal()
  const float* d_weights = nullptr;       ///< [tokens * taken], by row
  /// [experts], added for each token to the gradient of softmax scores; null: nothing is added
  const float* d_probabilities = nullptr;
  const float* z_slope = nullptr;  ///< [1], from z_loss(); null: no gradient of a z-loss is added
  Matrix d_logits;                 ///< [tokens, experts] f32 or bf16
};
void route_backward(Stream& stream, const RouteBackwardArgs& args);

/// Backward of weighted_rows() for its weights, and for x of the preceding GEMM y = x · Wᵀ. On entry, d = d_y
/// · W, and d_y holds the gradient of y without weights. Sets d_weights[r] = x[r] · d[r]. Then multiplies row
/// r of `d`, and of `d_y` if it has data, by the weight of the row.
struct WeighBackwardArgs {
  ConstMatrix x;  ///< [rows, width] T, at most tokens * taken rows
  Matrix d;       ///< of the shape of x, T
  Matrix d_y;     ///< [rows, out] T, or other rows to multiply, or no data
  std::int64_t tokens = 0, taken = 0;
  const std::int32_t* places = nullptr;  ///< [tokens, taken], from deal()
  const float* weights = nullptr;        ///< [tokens, taken], from deal()
  float* d_weights = nullptr;            ///< [rows]
};
void weigh_backward(Stream& stream, const WeighBackwardArgs& args);

/// out[t] = addend[t] + sigmoid(logits[t]) * x[t], in fp32, rounded once. Adds the output of a shared expert,
/// which processes every token. `out` may be `addend`. Null logits: a factor of 1.
struct GatedRowsArgs {
  const float* logits = nullptr;  ///< [tokens], or null
  ConstMatrix x;                  ///< [tokens, cols] T
  ConstMatrix addend;             ///< [tokens, cols] T
  Matrix out;                     ///< [tokens, cols] T
};
void gated_rows(Stream& stream, const GatedRowsArgs& args);

/// Backward of gated_rows() for x and for the logits, rounded to T.
struct GatedRowsBackwardArgs {
  const float* logits = nullptr;
  ConstMatrix x, d_out;  ///< [tokens, cols] T
  Matrix d_x;            ///< [tokens, cols] T
  Matrix d_logits;       ///< [tokens, 1] T
};
void gated_rows_backward(Stream& stream, const GatedRowsBackwardArgs& args);

/// out[t] = addend[t] + Σ_j weights[t, j] * x[places[t, j]]. The sum is in fp32 in the order of j, the addend
/// is added last, and the result is rounded once. `out` may be `addend`. Null addend data: no addend. Null
/// weights: each weight is 1, as in backward. A place below 0 adds nothing.
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
