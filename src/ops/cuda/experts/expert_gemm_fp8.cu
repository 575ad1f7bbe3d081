// The kernels of the GEMMs of experts in FP8. All operands are contiguous along the inner dimension, so dgrad
// is the kernel of forward with the transposed weight.
#include "cuda/experts/expert_gemm.cuh"

namespace octet::ops::cuda {

void expert_gemm_fp8(Stream& stream, const ExpertGemmArgs& args);

namespace {

ConstMatrix row_copy(const Operand& x) {
  return {x.data, x.dtype, x.rows, x.cols, x.cols};
}
ConstMatrix transposed_copy(const Operand& x) {
  return {x.transposed, x.dtype, x.cols, x.rows, x.rows};
}

template <typename F>
void launch(Stream& stream, const ExpertGemmArgs& args) {
  const std::int64_t weight_rows = args.b.rows / args.count;
  switch (args.gemm_kind) {
    case GemmKind::forward:
      return launch_expert_gemm<GemmKind::forward, F, __nv_bfloat16>(
          stream, args, {.a = row_copy(args.a), .b = row_copy(args.b), .weight_rows = weight_rows});
    case GemmKind::dgrad: {
      const ConstMatrix flipped(args.b.transposed, args.b.dtype, args.count * args.b.cols, weight_rows,
                                weight_rows);
      return launch_expert_gemm<GemmKind::forward, F, __nv_bfloat16>(
          stream, args, {.a = row_copy(args.a), .b = flipped, .weight_rows = args.b.cols});
    }
    case GemmKind::wgrad: {
      const ExpertOperands operands{.a = transposed_copy(args.a), .b = transposed_copy(args.b)};
      args.d.dtype == DType::f32
          ? launch_expert_gemm<GemmKind::wgrad, F, float>(stream, args, operands)
          : launch_expert_gemm<GemmKind::wgrad, F, __nv_bfloat16>(stream, args, operands);
    }
  }
}

}  // namespace

void expert_gemm_fp8(Stream& stream, const ExpertGemmArgs& args) {
  if (args.a.dtype == DType::e5m2) {
    args.fast_accumulation ? launch<Fp8Tiles<true, false>>(stream, args)
                           : launch<Fp8Tiles<true, true>>(stream, args);
  } else {
    args.fast_accumulation ? launch<Fp8Tiles<false, false>>(stream, args)
                           : launch<Fp8Tiles<false, true>>(stream, args);
  }
}

}  // namespace octet::ops::cuda
