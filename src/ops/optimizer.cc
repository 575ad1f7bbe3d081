#include "octet/ops/optimizer.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void square_sum(Stream& stream, const SquareSumArgs& args) {
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "square_sum: x must be f32 or bf16");
  check(args.count >= 0 && (args.count == 0 || args.x) && args.limbs, "square_sum: x and limbs are needed");
  OCTET_DISPATCH(stream, square_sum, args);
}

void finish_norm(Stream& stream, const std::int64_t* limbs, StepScalars* scalars) {
  check(limbs && scalars, "finish_norm: limbs and scalars are needed");
  const FinishNormArgs args{limbs, scalars};
  OCTET_DISPATCH(stream, finish_norm, args);
}

void adamw(Stream& stream, const AdamWArgs& args) {
  check(args.scalars != nullptr, "adamw: scalars are missing");
  check(args.copy_dtype == DType::f32 || args.copy_dtype == DType::bf16, "adamw: copy must be f32 or bf16");
  bool work_to_do = false;
  for (const AdamWSpan& span : args.spans) {
    check(span.begin >= 0 && span.count >= 0, "adamw: a span must lie inside the slice");
    work_to_do = work_to_do || span.count > 0;
  }
  check(!work_to_do || (args.master && args.grad && args.exp_avg && args.exp_avg_sq),
        "adamw: master, grad, exp_avg and exp_avg_sq are needed");
  AdamWWork work{args, {args.spans.begin(), args.spans.end()}};
  work.args.spans = {};
  OCTET_DISPATCH(stream, adamw, work);
}

}  // namespace octet::ops
