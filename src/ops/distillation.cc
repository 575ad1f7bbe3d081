#include "octet/ops/distillation.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void distillation(Stream& stream, const DistillationArgs& args) {
  const std::int64_t rows = args.logits.rows, vocabulary = args.logits.cols;
  check(is_matrix(args.logits) && (rows == 0 || vocabulary > 0),
        "distillation: logits must be [rows, vocabulary] T");
  check(args.rule.ratio >= 0 && args.rule.ratio <= 1 && args.rule.beta >= 0 && args.rule.beta <= 1,
        "distillation: ratio and beta are from 0 to 1");
  check(args.rule.temperature > 0 && args.soft_cap >= 0,
        "distillation: the temperature is above 0, and soft_cap is not negative");
  if (rows > 0) {
    check(
        args.targets && args.row_loss && args.row_divergence && args.row_cross_entropy && args.row_agreement,
        "distillation: targets and arrays of rows are needed");
    if (args.teacher.data != nullptr) {
      check(args.teacher.dtype == args.logits.dtype && args.teacher.rows == rows &&
                args.teacher.cols == vocabulary,
            "distillation: logits of the teacher have the shape and dtype of logits");
    } else {
      check(args.ranks > 0 && args.ranks <= vocabulary && args.ids && args.logprobs && args.rest && args.kept,
            "distillation: the listed tokens of each row are needed");
    }
  }
  OCTET_DISPATCH(stream, distillation, args);
}

}  // namespace octet::ops
