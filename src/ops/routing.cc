#include "octet/ops/routing.h"

#include <cstdint>

#include "checks.h"
#include "dispatch.h"

namespace octet::ops {
namespace cpu {
void route(const RouteArgs& args);
void deal(const DealArgs& args);
void limit_rows(const LimitRowsArgs& args);
void weighted_rows(const WeightedRowsArgs& args);
void add_load(const AddLoadArgs& args);
void balance_loss(const BalanceLossArgs& args);
void add_log_sums(const AddLogSumsArgs& args);
void z_loss(const ZLossArgs& args);
void route_backward(const RouteBackwardArgs& args);
void weigh_backward(const WeighBackwardArgs& args);
void gated_rows(const GatedRowsArgs& args);
void gated_rows_backward(const GatedRowsBackwardArgs& args);
}  // namespace cpu
namespace cuda {
void route(Stream& stream, const RouteArgs& args);
void deal(Stream& stream, const DealArgs& args);
void limit_rows(Stream& stream, const LimitRowsArgs& args);
void weighted_rows(Stream& stream, const WeightedRowsArgs& args);
void add_load(Stream& stream, const AddLoadArgs& args);
void balance_loss(Stream& stream, const BalanceLossArgs& args);
void add_log_sums(Stream& stream, const AddLogSumsArgs& args);
void z_loss(Stream& stream, const ZLossArgs& args);
void route_backward(Stream& stream, const RouteBackwardArgs& args);
void weigh_backward(Stream& stream, const WeighBackwardArgs& args);
void gated_rows(Stream& stream, const GatedRowsArgs& args);
void gated_rows_backward(Stream& stream, const GatedRowsBackwardArgs& args);
}  // namespace cuda

void route(Stream& stream, const RouteArgs& args) {
  if (args.logits.rows == 0) return;
  check(is_matrix(args.logits) && args.logits.dtype == DType::f32, "route: logits are [tokens, experts] f32");
  check(args.logits.cols > 0 && args.logits.cols <= kMostExperts,
        "route: there are experts, and not too many");
  check(args.taken > 0 && args.taken <= args.logits.cols, "route: no more experts are taken than there are");
  check(args.experts != nullptr && args.weights != nullptr, "route: there is room for the chosen experts");
  check(args.groups > 0 && args.logits.cols % args.groups == 0, "route: the groups divide the experts");
  const std::int64_t in_group = args.logits.cols / args.groups;
  check(args.groups == 1 || in_group >= 2, "route: a group has at least two experts");
  check(args.group_best == 1 || args.group_best == 2, "route: one or two scores of a group count");
  check(
      args.taken_groups > 0 && args.taken_groups <= args.groups && args.taken <= args.taken_groups * in_group,
      "route: the chosen groups have enough experts");
  OCTET_DISPATCH(stream, route, args);
}

void deal(Stream& stream, const DealArgs& args) {
  check(args.count > 0 && args.count <= kMostExperts, "deal: there are experts, and not too many");
  check(args.tokens >= 0 && args.taken > 0 && args.taken <= args.count,
        "deal: no more experts are taken than there are");
  check(args.tokens <= INT32_MAX / args.taken, "deal: rows are counted in 31 bits");
  check(args.begins != nullptr && args.row_tokens != nullptr && args.places != nullptr &&
            args.place_weights != nullptr && args.experts != nullptr && args.weights != nullptr,
        "deal: there is room for the results");
  OCTET_DISPATCH(stream, deal, args);
}

void limit_rows(Stream& stream, const LimitRowsArgs& args) {
  check(args.count > 0 && args.count <= kMostExperts && args.taken > 0 && args.capacity > 0,
        "limit_rows: there are experts, with room for a row");
  check(args.experts != nullptr && args.weights != nullptr && args.begins != nullptr &&
            args.row_tokens != nullptr,
        "limit_rows: there are choices, and rows of deal()");
  OCTET_DISPATCH(stream, limit_rows, args);
}

void weighted_rows(Stream& stream, const WeightedRowsArgs& args) {
  if (args.out.rows == 0) return;
  const bool adds = args.addend.data != nullptr;
  check(is_matrix(args.x) && (!adds || is_matrix(args.addend)) && is_matrix(args.out),
        "weighted_rows: matrices are f32 or bf16");
  check((!adds || same_form(args.addend, args.out)) && args.x.dtype == args.out.dtype &&
            args.x.cols == args.out.cols,
        "weighted_rows: x, addend and out have the same columns and dtype");
  check(args.taken > 0 && args.places != nullptr, "weighted_rows: every token has rows");
  OCTET_DISPATCH(stream, weighted_rows, args);
}

std::size_t add_load_workspace(const Device& device, std::int64_t experts) {
  if (device.kind() == DeviceKind::cpu) return 0;
  return static_cast<std::size_t>(kLoadParts * experts) * sizeof(double);
}

void add_load(Stream& stream, const AddLoadArgs& args) {
  if (args.logits.rows == 0) return;
  check(is_matrix(args.logits) && args.logits.dtype == DType::f32,
        "add_load: logits are [tokens, experts] f32");
  check(args.begins != nullptr && args.counts != nullptr && args.probabilities != nullptr,
        "add_load: there is room for the sums");
  check(args.workspace.bytes >= add_load_workspace(stream.device(), args.logits.cols),
        "add_load: there is scratch");
  OCTET_DISPATCH(stream, add_load, args);
}

void balance_loss(Stream& stream, const BalanceLossArgs& args) {
  if (args.rows == 0) return;
  check(args.counts != nullptr && args.probabilities != nullptr && args.count > 0,
        "balance_loss: experts have a load");
  check(args.labels == 0 || args.targets != nullptr, "balance_loss: labels have targets");
  check(args.loss_sum != nullptr && args.d_probabilities != nullptr,
        "balance_loss: there is room for results");
  OCTET_DISPATCH(stream, balance_loss, args);
}

std::size_t add_log_sums_workspace(const Device& device) {
  if (device.kind() == DeviceKind::cpu) return 0;
  return static_cast<std::size_t>(kLoadParts) * sizeof(double);
}

void add_log_sums(Stream& stream, const AddLogSumsArgs& args) {
  if (args.logits.rows == 0) return;
  check(is_matrix(args.logits) && args.logits.dtype == DType::f32 && args.logits.cols > 0,
        "add_log_sums: logits are [tokens, experts] f32");
  check(args.sum != nullptr, "add_log_sums: there is room for the sum");
  check(args.workspace.bytes >= add_log_sums_workspace(stream.device()), "add_log_sums: there is scratch");
  OCTET_DISPATCH(stream, add_log_sums, args);
}

void z_loss(Stream& stream, const ZLossArgs& args) {
  if (args.tokens == 0) return;
  check(args.labels == 0 || args.targets != nullptr, "z_loss: labels have targets");
  check(args.sum != nullptr && args.loss_sum != nullptr && args.slope != nullptr,
        "z_loss: there is a sum, and room for results");
  OCTET_DISPATCH(stream, z_loss, args);
}

void route_backward(Stream& stream, const RouteBackwardArgs& args) {
  if (args.logits.rows == 0) return;
  check(is_matrix(args.logits) && args.logits.dtype == DType::f32,
        "route_backward: logits are [tokens, experts] f32");
  check(is_matrix(args.d_logits) && args.d_logits.rows == args.logits.rows &&
            args.d_logits.cols == args.logits.cols,
        "route_backward: d_logits has the shape of logits");
  check(args.taken > 0 && args.taken <= args.logits.cols && args.experts != nullptr &&
            args.places != nullptr && args.d_weights != nullptr,
        "route_backward: every token has experts, rows and gradients of weights");
  check(args.d_probabilities == nullptr || args.scores == RouterScores::softmax,
        "route_backward: only softmax scores are probabilities");
  OCTET_DISPATCH(stream, route_backward, args);
}

void weigh_backward(Stream& stream, const WeighBackwardArgs& args) {
  if (args.tokens == 0) return;
  check(is_matrix(args.x) && is_matrix(args.d) && same_form(args.x, args.d),
        "weigh_backward: x and d are matrices of one shape and dtype");
  check(args.x.rows <= args.tokens * args.taken, "weigh_backward: a token has at most `taken` rows");
  check(args.d_y.data == nullptr ||
            (is_matrix(args.d_y) && args.d_y.rows == args.x.rows && args.d_y.dtype == args.x.dtype),
        "weigh_backward: d_y has the rows and the dtype of x");
  check(args.places != nullptr && args.weights != nullptr && args.d_weights != nullptr,
        "weigh_backward: every row has a weight");
  OCTET_DISPATCH(stream, weigh_backward, args);
}

void gated_rows(Stream& stream, const GatedRowsArgs& args) {
  if (args.x.rows == 0) return;
  check(is_matrix(args.x) && is_matrix(args.addend) && is_matrix(args.out),
        "gated_rows: matrices are f32 or bf16");
  check(same_form(args.x, args.out) && same_form(args.addend, args.out),
        "gated_rows: x, addend and out have the same shape and dtype");
  OCTET_DISPATCH(stream, gated_rows, args);
}

void gated_rows_backward(Stream& stream, const GatedRowsBackwardArgs& args) {
  if (args.x.rows == 0) return;
  check(args.logits != nullptr && is_matrix(args.x) && is_matrix(args.d_out) && is_matrix(args.d_x),
        "gated_rows_backward: matrices are f32 or bf16, and every row has a logit");
  check(same_form(args.x, args.d_x) && same_form(args.d_out, args.d_x),
        "gated_rows_backward: x, d_out and d_x have the same shape and dtype");
  check(is_matrix(args.d_logits) && args.d_logits.rows == args.x.rows && args.d_logits.cols == 1 &&
            args.d_logits.dtype == args.x.dtype,
        "gated_rows_backward: d_logits is [tokens, 1] of the dtype of x");
  OCTET_DISPATCH(stream, gated_rows_backward, args);
}

}  // namespace octet::ops
