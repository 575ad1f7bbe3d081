// The GEMMs of experts in training (expert_gemm.h): which kernel runs, and the kernels in bf16.
#include "cuda/experts/expert_gemm.cuh"

namespace octet::ops::cuda {

bool has_expert_gemm();
void expert_gemm(Stream& stream, const ExpertGemmArgs& args);
void expert_gemm_fp8(Stream& stream, const ExpertGemmArgs& args);

namespace {

template <GemmKind P, typename T>
void launch(Stream& stream, const ExpertGemmArgs& args) {
  const auto dense = [](const Operand& x) { return ConstMatrix(x.data, x.dtype, x.rows, x.cols, x.cols); };
  launch_expert_gemm<P, Bf16Tiles, T>(
      stream, args, {.a = dense(args.a), .b = dense(args.b), .weight_rows = args.b.rows / args.count});
}

}  // namespace

bool has_expert_gemm() {
  return octet::cuda::code_here() == 90;
}

void expert_gemm(Stream& stream, const ExpertGemmArgs& a) {
  if (is_fp8(a.a.dtype)) return expert_gemm_fp8(stream, a);
  switch (a.gemm_kind) {
    case GemmKind::forward:
      return launch<GemmKind::forward, __nv_bfloat16>(stream, a);
    case GemmKind::dgrad:
      return launch<GemmKind::dgrad, __nv_bfloat16>(stream, a);
    case GemmKind::wgrad:
      a.d.dtype == DType::f32 ? launch<GemmKind::wgrad, float>(stream, a)
                              : launch<GemmKind::wgrad, __nv_bfloat16>(stream, a);
  }
}

}  // namespace octet::ops::cuda
