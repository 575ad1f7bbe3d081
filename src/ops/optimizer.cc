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
  for (const DType dtype : {args.master_dtype, args.grad_dtype}) {
    check(dtype == DType::f32 || dtype == DType::bf16, "adamw: master and grad must be f32 or bf16");
  }
  const bool coded = args.moment_dtype == DType::u8;
  check(coded || args.moment_dtype == DType::f32 || args.moment_dtype == DType::bf16,
        "adamw: moments must be f32, bf16 or u8");
  const bool wide =
      args.master_dtype == DType::f32 && args.grad_dtype == DType::f32 && args.moment_dtype == DType::f32;
  bool work_to_do = false;
  for (const AdamWSpan& span : args.spans) {
    check(span.begin >= 0 && span.count >= 0, "adamw: a span must lie inside the slice");
    check(wide || (span.begin % kMomentBlock == 0 && span.first % kMomentBlock == 0),
          "adamw: spans of narrow formats must begin at whole blocks");
    check(span.first >= 0 && span.tensor < (1u << 30), "adamw: a tensor's number must be below 2^30");
    work_to_do = work_to_do || span.count > 0;
  }
  check(!work_to_do || (args.master && args.grad && args.exp_avg && args.exp_avg_sq),
        "adamw: master, grad, exp_avg and exp_avg_sq are needed");
  check(!work_to_do || !coded || (args.exp_avg_scale && args.exp_avg_sq_scale),
        "adamw: moments in blocks need their scales");
  AdamWWork work{args, {args.spans.begin(), args.spans.end()}};
  work.args.spans = {};
  OCTET_DISPATCH(stream, adamw, work);
}

}  // namespace octet::ops
