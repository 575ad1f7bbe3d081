#include "cuda/gemm/few_rows.h"

#include "cuda/gemm/few_rows.cuh"
#include "gemm_plan.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

template <int WEIGHT_TILES, int TOKEN_TILES, typename T>
void launch(cudaStream_t stream, const FewRows& args) {
  using C = FewRowsCut<WEIGHT_TILES, TOKEN_TILES>;
  const int blocks = (args.outputs + C::OUTPUTS - 1) / C::OUTPUTS;
  few_rows_kernel<C, T><<<static_cast<unsigned>(blocks), C::THREADS, 0, stream>>>(args);
  octet::cuda::check_launch("gemm");
}

template <typename T>
void run(cudaStream_t stream, const FewRows& args) {
  return args.tokens <= 8 ? launch<1, 1, T>(stream, args) : launch<2, 2, T>(stream, args);
}

}  // namespace

bool multiply_few_rows(cudaStream_t stream, const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  const std::int64_t inner = a.cols, a_ld = args.a_ld != 0 ? args.a_ld : inner;
  const bool fits = args.product == Product::forward && a.dtype == DType::bf16 && b.dtype == DType::bf16 &&
                    a.rows <= 16 && b.rows < (std::int64_t{1} << 30) && inner > 0 && inner % 32 == 0 &&
                    a_ld % 8 == 0 && on_boundary(a.data) && on_boundary(b.data);
  if (!fits) return false;
  const FewRows few{.a = static_cast<const __nv_bfloat16*>(a.data),
                    .b = static_cast<const __nv_bfloat16*>(b.data),
                    .d = args.d.data,
                    .addend = args.accumulate ? args.d.data : args.addend.data,
                    .bias = args.bias,
                    .a_ld = a_ld,
                    .b_ld = inner,
                    .d_ld = args.d.ld,
                    .inner = inner,
                    .tokens = static_cast<int>(a.rows),
                    .outputs = static_cast<int>(b.rows),
                    .factor = args.factor};
  args.d.dtype == DType::f32 ? run<float>(stream, few) : run<__nv_bfloat16>(stream, few);
  return true;
}

}  // namespace octet::ops::cuda
