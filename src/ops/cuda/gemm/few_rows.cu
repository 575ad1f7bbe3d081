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
void launch(cudaStream_t stream, const FewRows& args) {
  const int blocks = (args.outputs + C::OUTPUTS - 1) / C::OUTPUTS;
  launch_early(few_rows_kernel<C, T>, dim3(static_cast<unsigned>(blocks)), C::THREADS, 0, stream, "gemm",
               args);
}

// Where there are more tokens a block has more rows of the weight, so that the tokens are read less often.
template <typename T>
void run(cudaStream_t stream, const FewRows& args) {
  if (args.tokens <= 8) return launch<FewRowsCut<1, 1, 4>, T>(stream, args);
  if (args.tokens <= 16) return launch<FewRowsCut<2, 2, 2>, T>(stream, args);
  launch<FewRowsCut<2, 4, 2>, T>(stream, args);
}

/// The most tokens that the kernels are for, and those for which they take the library's place.
constexpr std::int64_t kMostTokens = 32, kUsualTokens = 16;

std::int64_t most_tokens() {
  static const std::int64_t most = [] {
    const char* wish = environment_variable("OCTETRUN_FEW_ROWS");
    return wish == nullptr ? kUsualTokens : std::clamp<std::int64_t>(std::atoll(wish), 0, kMostTokens);
  }();
  return most;
}

}  // namespace

bool multiply_few_rows(cudaStream_t stream, const GemmArgs& args) {
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
  args.d.dtype == DType::f32 ? run<float>(stream, few) : run<__nv_bfloat16>(stream, few);
  return true;
}

}  // namespace octet::ops::cuda
