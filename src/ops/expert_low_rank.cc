#include "octet/ops/expert_low_rank.h"

#include <string_view>

#include "checks.h"
#include "dispatch.h"
#include "gemm_plan.h"
#include "grouped_wish.h"
#include "octet/ops/routing.h"

namespace octet::ops {

namespace cpu {
void expert_low_rank(const ExpertLowRankArgs& args);
}  // namespace cpu
namespace cuda {
bool has_expert_low_rank();
void expert_low_rank(Stream& stream, const ExpertLowRankArgs& args);
}  // namespace cuda

namespace {

/// The kernels copy runs of this number of elements.
constexpr std::int64_t kCopied = 8;

/// Returns whether the kernels can copy the rows of m.
bool has_copied_rows(const ConstMatrix& m) {
  return m.cols % kCopied == 0 && m.ld % kCopied == 0 && on_boundary(m.data) &&
         m.rows < (std::int64_t{1} << 31) && m.cols < (std::int64_t{1} << 30);
}

/// Returns whether one dimension of the experts' matrices is a rank.
bool has_rank(const ConstMatrix& weight) {
  return std::min(weight.rows, weight.cols) <= kMostLowRank && weight.rows % kCopied == 0 &&
         weight.cols % kCopied == 0;
}

bool fits_kernels(const ExpertLowRankArgs& args) {
  const ConstMatrix weight = args.gemm_kind == GemmKind::wgrad ? ConstMatrix(args.d) : args.b;
  return args.a.dtype == DType::bf16 && args.b.dtype == DType::bf16 && args.count <= kMostExperts &&
         has_copied_rows(args.a) && has_copied_rows(args.b) && has_copied_rows(args.d) && has_rank(weight) &&
         args.step % kCopied == 0;
}

}  // namespace

bool has_expert_low_rank(const Device& device, const ExpertLowRankArgs& args) {
  const std::string_view wish = grouped_wish();
  if (wish == "never") return false;
  const bool dry = device.kind() == DeviceKind::dry;
  const DeviceKind kind = dry ? device.stands_for() : device.kind();
  if (kind == DeviceKind::cpu) return wish == "always";
  if (!fits_kernels(args)) return false;
  return dry || cuda::has_expert_low_rank();
}

void expert_low_rank(Stream& stream, const ExpertLowRankArgs& args) {
  const ConstMatrix &a = args.a, &b = args.b;
  const Matrix& d = args.d;
  const bool wgrad = args.gemm_kind == GemmKind::wgrad, forward = args.gemm_kind == GemmKind::forward;
  check(args.count > 0 && args.count <= kMostExperts && args.begins != nullptr,
        "expert_low_rank: there are experts, and not too many");
  check(is_matrix(a) && is_matrix(b) && is_matrix(d) && a.dtype == b.dtype &&
            (d.dtype == a.dtype || (wgrad && d.dtype == DType::f32)),
        "expert_low_rank: a and b are f32 or bf16, and d can hold their products");
  const ConstMatrix weight = wgrad ? ConstMatrix(d) : b;
  check(args.count == 1 || args.step >= weight.rows * weight.ld,
        "expert_low_rank: matrices of experts do not overlap");
  check(a.cols == (forward ? weight.cols : weight.rows) &&
            (wgrad ? b.rows == a.rows && b.cols == weight.cols
                   : b.ld == b.cols && d.rows == a.rows && d.cols == (forward ? weight.rows : weight.cols)),
        "expert_low_rank: a, b and d fit each other");
  check(stream.device().kind() != DeviceKind::cuda || has_expert_low_rank(stream.device(), args),
        "expert_low_rank: has_expert_low_rank() is true on a GPU");
  if (!wgrad && d.rows == 0) return;
  OCTET_DISPATCH(stream, expert_low_rank, args);
}

}  // namespace octet::ops
