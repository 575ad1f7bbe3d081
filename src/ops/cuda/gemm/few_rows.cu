#include "cuda/gemm/few_rows.h"

#include <algorithm>
#include <cstdlib>

#include "cuda/gemm/few_rows.cuh"
#include "gemm_plan.h"
#include "octet/base/environment.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

template <typename C, typename T>
void launch(cudaStream_t stream, const FewRows& args, int multiprocessors) {
  static const cudaError_t allowed =
      cudaFuncSetAttribute(few_rows_kernel<C, T>, cudaFuncAttributeMaxDynamicSharedMemorySize, C::BYTES);
  octet::cuda::check(allowed, "asking for shared memory");
  const int tiles = (args.outputs + C::OUTPUTS - 1) / C::OUTPUTS;
  launch_early(few_rows_kernel<C, T>, dim3(static_cast<unsigned>(std::min(tiles, multiprocessors))),
               C::THREADS, C::BYTES, stream, "gemm", args);
}

template <typename T>
void run(cudaStream_t stream, const FewRows& args, int multiprocessors) {
  if (args.tokens <= 8) return launch<FewRowsCut<1>, T>(stream, args, multiprocessors);
  if (args.tokens <= 16) return launch<FewRowsCut<2>, T>(stream, args, multiprocessors);
  launch<FewRowsCut<4>, T>(stream, args, multiprocessors);
}

/// The most tokens that the kernels are for, and those for which they take the library's place.
constexpr std::int64_t kMostTokens = 32, kUsualTokens = 0;

std::int64_t most_tokens() {
  static const std::int64_t most = [] {
    const char* wish = environment_variable("OCTETRUN_FEW_ROWS");
    return wish == nullptr ? kUsualTokens : std::clamp<std::int64_t>(std::atoll(wish), 0, kMostTokens);
  }();
  return most;
}

}  // namespace

bool multiply_few_rows(Stream& stream, const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  const std::int64_t inner = a.cols;
  const std::int64_t a_ld = args.a_ld != 0 ? args.a_ld : inner, b_ld = args.b_ld != 0 ? args.b_ld : inner;
  const bool fits = args.product == Product::forward && a.dtype == DType::bf16 && b.dtype == DType::bf16 &&
                    a.rows <= most_tokens() && b.rows < (std::int64_t{1} << 30) && inner > 0 &&
                    inner % 32 == 0 && a_ld % 8 == 0 && b_ld % 8 == 0 && on_boundary(a.data) &&
                    on_boundary(b.data);
  if (!fits) return false;
  const FewRows few{.a = static_cast<const __nv_bfloat16*>(a.data),
                    .b = static_cast<const __nv_bfloat16*>(b.data),
                    .d = args.d.data,
                    .addend = args.accumulate ? args.d.data : args.addend.data,
                    .bias = args.bias,
                    .a_ld = a_ld,
                    .b_ld = b_ld,
                    .d_ld = args.d.ld,
                    .inner = inner,
                    .tokens = static_cast<int>(a.rows),
                    .outputs = static_cast<int>(b.rows),
                    .factor = args.factor};
  const int multiprocessors = octet::cuda::properties(stream.device()).multiprocessors;
  cudaStream_t native = octet::cuda::native(stream);
  args.d.dtype == DType::f32 ? run<float>(native, few, multiprocessors)
                             : run<__nv_bfloat16>(native, few, multiprocessors);
  return true;
}

}  // namespace octet::ops::cuda
