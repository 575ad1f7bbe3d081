#include "gemm_plan.h"

#include "cuda/scratch.h"

namespace octet::ops {
namespace {

/// FP8 uses the copy with the inner dimension in rows, if it exists.
GemmSide side_of(const Operand& x, bool inner) {
  GemmSide side{.data = x.data,
                .inner = inner,
                .dtype = x.dtype,
                .outer = inner ? x.rows : x.cols,
                .scale_inv = x.scale_inv,
                .scaling = x.scaling};
  const bool planned = x.data == nullptr && x.transposed == nullptr;
  if (is_fp8(x.dtype) && !inner && (x.transposed != nullptr || planned)) {
    side.data = x.transposed;
    side.inner = true;
    if (x.scaling != Scaling::tensor) side.scale_inv = x.transposed_scale_inv;
  }
  return side;
}

/// Returns why the operands cannot be multiplied as FP8.
GemmReason reason_to_decode(const GemmPlan& plan, const Matrix& d) {
  using enum GemmReason;
  constexpr std::int64_t unit = cuda::kUnit;
  if (!plan.a.inner || !plan.b.inner) return no_transposed_copy;
  if (plan.b.outer % unit != 0) return columns;
  if (static_cast<std::size_t>(d.ld) * size_of(d.dtype) % 16 != 0) return leading_dimension;
  if (!on_boundary(d.data)) return boundary;
  if (plan.a.scaling == Scaling::tensor) return none;
  if (plan.a.scaling == Scaling::rows && plan.a.outer % 4 != 0) return rows;
  if (plan.k % unit != 0) return inner;
  if (!on_boundary(plan.a.data) || !on_boundary(plan.b.data)) return boundary;
  return on_boundary(plan.a.scale_inv) && on_boundary(plan.b.scale_inv) ? none : scale_boundary;
}

}  // namespace

GemmPlan plan_gemm(const GemmArgs& args) {
  GemmPlan plan{.a = side_of(args.a, args.gemm_kind != GemmKind::wgrad),
                .b = side_of(args.b, args.gemm_kind == GemmKind::forward),
                .k = args.gemm_kind == GemmKind::wgrad ? args.a.rows : args.a.cols};
  if (!is_fp8(args.a.dtype)) {
    plan.way = args.a.dtype == DType::bf16 ? GemmWay::bf16 : GemmWay::f32;
    return plan;
  }
  plan.reason = reason_to_decode(plan, args.d);
  plan.way = plan.reason == GemmReason::none ? GemmWay::fp8 : GemmWay::decoded;
  if (plan.way == GemmWay::decoded) return plan;
  if (plan.k % cuda::kUnit != 0) {
    plan.reason = GemmReason::inner;
  } else if (!on_boundary(plan.a.data) || !on_boundary(plan.b.data)) {
    plan.reason = GemmReason::boundary;
  }
  if (plan.reason != GemmReason::none) plan.way = GemmWay::filled;
  return plan;
}

GemmOutcome outcome_of(const GemmArgs& args, GemmWay way, GemmReason reason, std::int64_t calls) {
  const bool decoded = way == GemmWay::decoded;
  return {.way = way,
          .reason = reason,
          .a = decoded ? DType::bf16 : args.a.dtype,
          .b = decoded ? DType::bf16 : args.b.dtype,
          .calls = calls};
}

const char* name_of(GemmWay way) {
  switch (way) {
    case GemmWay::none:
      return "none";
    case GemmWay::f32:
      return "fp32";
    case GemmWay::bf16:
      return "bf16";
    case GemmWay::fp8:
      return "fp8";
    case GemmWay::filled:
      return "filled";
    case GemmWay::decoded:
      return "decoded";
    case GemmWay::emulated:
      return "emulated";
  }
  return "unknown";
}

const char* text_of(GemmReason reason) {
  switch (reason) {
    case GemmReason::none:
      return "";
    case GemmReason::no_transposed_copy:
      return "an operand has no transposed copy";
    case GemmReason::rows:
      return "the rows of the result are no multiple of 4";
    case GemmReason::columns:
      return "the columns of the result are no multiple of 16";
    case GemmReason::inner:
      return "the dimension that is summed is not a multiple of 16";
    case GemmReason::leading_dimension:
      return "the rows of the result are no multiple of 16 bytes apart";
    case GemmReason::boundary:
      return "an operand or the result does not begin on a 16-byte boundary";
    case GemmReason::scale_boundary:
      return "scales do not begin on a 16-byte boundary";
    case GemmReason::refused:
      return "cuBLASLt does not multiply these shapes with these scales";
  }
  return "unknown";
}

}  // namespace octet::ops
