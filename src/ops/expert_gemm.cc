#include "octet/ops/expert_gemm.h"

#include <string_view>

#include "checks.h"
#include "dispatch.h"
#include "grouped_wish.h"
#include "octet/ops/routing.h"
#include "product_names.h"

namespace octet::ops {

namespace cpu {
void expert_gemm(const ExpertGemmArgs& args);
}  // namespace cpu
namespace cuda {
bool has_expert_gemm(const ExpertGemmArgs& args);
void expert_gemm(Stream& stream, const ExpertGemmArgs& args);
}  // namespace cuda

bool has_expert_gemm(const Device& device, const ExpertGemmArgs& args) {
  const std::string_view wish = grouped_wish();
  if (wish == "never" || args.a.dtype != DType::bf16 || args.b.dtype != DType::bf16) return false;
  if (device.kind() == DeviceKind::cpu) return wish == "always";
#ifdef OCTET_HAVE_CUDA
  if (device.kind() == DeviceKind::cuda) return cuda::has_expert_gemm(args);
#endif
  return false;
}

void expert_gemm(Stream& stream, const ExpertGemmArgs& args) {
  const auto& [product, a, b, count, begins, d, accumulate] = args;
  const bool wgrad = product == Product::wgrad;
  check(count > 0 && count <= kMostExperts && begins != nullptr,
        "expert_gemm: there are experts, and not too many");
  check(is_matrix(a) && is_matrix(b) && a.dtype == DType::bf16 && b.dtype == DType::bf16,
        "expert_gemm: a and b are bf16");
  check(is_matrix(d) && (wgrad || (d.dtype == DType::bf16 && !accumulate)),
        "expert_gemm: d is bf16, of wgrad also f32, and only wgrad accumulates");
  const Matrix& weight = d;
  const std::int64_t weight_rows = wgrad ? weight.rows : b.rows, weight_cols = wgrad ? weight.cols : b.cols;
  check(weight_rows % count == 0, "expert_gemm: every expert has as many rows");
  const std::int64_t out = weight_rows / count;
  const std::int64_t a_cols = product == Product::forward ? weight_cols : out;
  const std::int64_t d_cols = product == Product::forward ? out : weight_cols;
  check(a.cols == a_cols && d.cols == d_cols &&
            (wgrad ? b.cols == weight_cols && b.rows == a.rows : d.rows == a.rows),
        "expert_gemm: a, b and d fit each other");
  if (!wgrad && d.rows == 0) return;
  OCTET_DISPATCH_AS(stream, expert_gemm, args, profile_name_of(args.product));
}

}  // namespace octet::ops
