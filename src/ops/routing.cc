#include "octet/ops/routing.h"

#include <cstdint>

#include "checks.h"
#include "dispatch.h"

namespace octet::ops {

namespace cpu {
void route(const RouteArgs& args);
void deal(const DealArgs& args);
void weighted_rows(const WeightedRowsArgs& args);
}  // namespace cpu
namespace cuda {
void route(Stream& stream, const RouteArgs& args);
void deal(Stream& stream, const DealArgs& args);
void weighted_rows(Stream& stream, const WeightedRowsArgs& args);
}  // namespace cuda

void route(Stream& stream, const RouteArgs& args) {
  if (args.logits.rows == 0) return;
  check(is_matrix(args.logits) && args.logits.dtype == DType::f32, "route: logits are [tokens, experts] f32");
  check(args.logits.cols > 0 && args.logits.cols <= kMostExperts,
        "route: there are experts, and not too many");
  check(args.taken > 0 && args.taken <= args.logits.cols, "route: no more experts are taken than there are");
  check(args.experts != nullptr && args.weights != nullptr, "route: there is room for what is taken");
  OCTET_DISPATCH(stream, route, args);
}

void deal(Stream& stream, const DealArgs& args) {
  check(args.count > 0 && args.count <= kMostExperts, "deal: there are experts, and not too many");
  check(args.tokens >= 0 && args.taken > 0 && args.taken <= args.count,
        "deal: no more experts are taken than there are");
  check(args.tokens <= INT32_MAX / args.taken, "deal: rows are counted in 31 bits");
  check(args.begins != nullptr && args.row_tokens != nullptr && args.places != nullptr &&
            args.place_weights != nullptr && args.experts != nullptr && args.weights != nullptr,
        "deal: there is room for what is dealt");
  OCTET_DISPATCH(stream, deal, args);
}

void weighted_rows(Stream& stream, const WeightedRowsArgs& args) {
  if (args.out.rows == 0) return;
  const bool adds = args.addend.data != nullptr;
  check(is_matrix(args.x) && (!adds || is_matrix(args.addend)) && is_matrix(args.out),
        "weighted_rows: matrices are f32 or bf16");
  check((!adds || same_form(args.addend, args.out)) && args.x.dtype == args.out.dtype &&
            args.x.cols == args.out.cols,
        "weighted_rows: x, addend and out have the same columns and dtype");
  check(args.taken > 0 && args.places != nullptr && args.weights != nullptr,
        "weighted_rows: every token has rows and weights");
  OCTET_DISPATCH(stream, weighted_rows, args);
}

}  // namespace octet::ops
