// The kernels of the GEMMs of experts in FP8. All operands are contiguous along the inner dimension, so dgrad
// is the kernel of forward with the transposed weight.
#include "cuda/expert_gemm.cuh"

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
  switch (args.product) {
    case Product::forward:
      return launch_expert_gemm<Product::forward, F, __nv_bfloat16>(
          stream, args, {.a = row_copy(args.a), .b = row_copy(args.b), .weight_rows = weight_rows});
    case Product::dgrad: {
      const ConstMatrix turned(args.b.transposed, args.b.dtype, args.count * args.b.cols, weight_rows,
                               weight_rows);
      return launch_expert_gemm<Product::forward, F, __nv_bfloat16>(
          stream, args, {.a = row_copy(args.a), .b = turned, .weight_rows = args.b.cols});
    }
    case Product::wgrad: {
      const ExpertOperands operands{.a = transposed_copy(args.a), .b = transposed_copy(args.b)};
      args.d.dtype == DType::f32
          ? launch_expert_gemm<Product::wgrad, F, float>(stream, args, operands)
          : launch_expert_gemm<Product::wgrad, F, __nv_bfloat16>(stream, args, operands);
    }
  }
}

}  // namespace

void expert_gemm_fp8(Stream& stream, const ExpertGemmArgs& args) {
  if (args.a.dtype == DType::e5m2) {
    args.fast_accumulation ? launch<Fp8Products<true, false>>(stream, args)
                           : launch<Fp8Products<true, true>>(stream, args);
  } else {
    args.fast_accumulation ? launch<Fp8Products<false, false>>(stream, args)
                           : launch<Fp8Products<false, true>>(stream, args);
  }
}

}  // namespace octet::ops::cuda
