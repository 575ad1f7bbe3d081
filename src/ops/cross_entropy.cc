#include "octet/ops/cross_entropy.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  check(is_matrix(args.logits) && (args.logits.rows == 0 || args.logits.cols > 0),
        "cross_entropy: logits must be [rows, vocabulary] T");
  check(args.logits.rows == 0 || args.targets, "cross_entropy: targets are missing");
  check(args.soft_cap >= 0, "cross_entropy: soft_cap must not be negative");
  check(args.smoothing >= 0 && args.smoothing < 1, "cross_entropy: smoothing is at least 0 and below 1");
  check(!args.factors_loss || args.row_factors != nullptr, "cross_entropy: factors of losses are missing");
  OCTET_DISPATCH(stream, cross_entropy, args);
}

void row_entropy(Stream& stream, const RowEntropyArgs& args) {
  check(is_matrix(args.logits) && (args.logits.rows == 0 || args.logits.cols > 0),
        "row_entropy: logits must be [rows, vocabulary] T");
  check(args.logits.rows == 0 || args.out, "row_entropy: out is missing");
  check(args.soft_cap >= 0 && args.power >= 0, "row_entropy: soft_cap and power must not be negative");
  OCTET_DISPATCH(stream, row_entropy, args);
}

void soft_cap(Stream& stream, Matrix x, float cap) {
  check(is_matrix(x), "soft_cap: x must be [rows, cols] T");
  check(cap > 0, "soft_cap: the cap must be above 0");
  const SoftCapArgs args{x, cap};
  OCTET_DISPATCH(stream, soft_cap, args);
}

void add_sum(Stream& stream, const float* values, std::int64_t count, double* total) {
  check(count >= 0 && (count == 0 || values) && total, "add_sum: values and total are needed");
  const AddSumArgs args{values, count, total};
  OCTET_DISPATCH(stream, add_sum, args);
}

}  // namespace octet::ops
