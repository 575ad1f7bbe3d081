#include "octet/ops/expert_gemm.h"

#include <string_view>

#include "checks.h"
#include "dispatch.h"
#include "gemm_plan.h"
#include "grouped_wish.h"
#include "octet/ops/routing.h"

namespace octet::ops {

namespace cpu {
void expert_gemm(const ExpertGemmArgs& args);
}  // namespace cpu
namespace cuda {
bool has_expert_gemm();
void expert_gemm(Stream& stream, const ExpertGemmArgs& args);
}  // namespace cuda

namespace {

/// Returns whether a and b have dtypes that can be multiplied with each other.
bool dtypes_fit(const ExpertGemmArgs& args) {
  const Operand &a = args.a, &b = args.b;
  if (a.scaling != Scaling::tensor || b.scaling != Scaling::tensor) return false;
  if (a.dtype == DType::bf16) return b.dtype == DType::bf16;
  return is_fp8(a.dtype) && b.dtype == DType::e4m3;
}

/// Returns whether the copy engine can read the layout of an operand that a kernel reads, as `count`
/// matrices.
bool can_be_copied(const Operand& x, bool transposed, std::int64_t count, std::int64_t unit) {
  const void* const data = transposed ? x.transposed : x.data;
  constexpr std::int64_t most = std::int64_t{1} << 31;
  const std::int64_t rows = transposed ? x.cols * count : x.rows, cols = transposed ? x.rows / count : x.cols;
  return (x.data == nullptr || data != nullptr) && on_boundary(data) && cols % unit == 0 && rows < most &&
         cols < most / 4;
}

/// Returns whether the kernels of Hopper can run the GEMM.
bool fits_kernels(const ExpertGemmArgs& args) {
  const bool dgrad = args.gemm_kind == GemmKind::dgrad, wgrad = args.gemm_kind == GemmKind::wgrad;
  const Matrix& d = args.d;
  if (args.count > kMostExperts || d.ld % 8 != 0 || d.cols % 8 != 0 || !on_boundary(d.data) ||
      !(d.dtype == DType::bf16 || (wgrad && d.dtype == DType::f32)))
    return false;
  // In bf16, the inner dimension of dgrad must end with a run of a kernel, because the next expert begins
  // after it.
  if (args.a.dtype == DType::bf16)
    return can_be_copied(args.a, false, 1, 64) && can_be_copied(args.b, false, 1, 64);
  return can_be_copied(args.a, wgrad, 1, 16) &&
         can_be_copied(args.b, dgrad || wgrad, dgrad ? args.count : 1, 16);
}

bool has_data(const Operand& x) {
  return x.rows >= 0 && x.cols >= 0 && (x.data != nullptr || x.rows * x.cols == 0);
}

}  // namespace

bool has_expert_gemm(const Device& device, const ExpertGemmArgs& args) {
  const std::string_view wish = grouped_wish();
  if (wish == "never" || !dtypes_fit(args)) return false;
  const bool dry = device.kind() == DeviceKind::dry;
  const DeviceKind kind = dry ? device.stands_for() : device.kind();
  if (kind == DeviceKind::cpu && wish == "hopper")
    return is_fp8(args.a.dtype) && (args.gemm_kind != GemmKind::wgrad || args.a.rows % 16 == 0);
  if (kind == DeviceKind::cpu) return wish == "always" || is_fp8(args.a.dtype);
  if (!fits_kernels(args)) return false;
  return dry || cuda::has_expert_gemm();
}

void expert_gemm(Stream& stream, const ExpertGemmArgs& args) {
  const GemmKind gemm_kind = args.gemm_kind;
  const Operand &a = args.a, &b = args.b;
  const Matrix& d = args.d;
  const std::int64_t count = args.count;
  const bool wgrad = gemm_kind == GemmKind::wgrad;
  check(count > 0 && count <= kMostExperts && args.begins != nullptr,
        "expert_gemm: there are experts, and not too many");
  check(has_data(a) && has_data(b) && dtypes_fit(args),
        "expert_gemm: a and b are bf16, or FP8 with one scale");
  check(a.scale_inv == nullptr || is_fp8(a.dtype), "expert_gemm: only FP8 has scales");
  check(is_matrix(d) && (wgrad || ((d.dtype == DType::bf16 || is_fp8(a.dtype)) && !args.accumulate)),
        "expert_gemm: d is bf16, of wgrad and FP8 also f32, and only wgrad accumulates");
  const Matrix& weight = d;
  const std::int64_t weight_rows = wgrad ? weight.rows : b.rows, weight_cols = wgrad ? weight.cols : b.cols;
  check(weight_rows % count == 0, "expert_gemm: every expert has as many rows");
  const std::int64_t out = weight_rows / count;
  const std::int64_t a_cols = gemm_kind == GemmKind::forward ? weight_cols : out;
  const std::int64_t d_cols = gemm_kind == GemmKind::forward ? out : weight_cols;
  check(a.cols == a_cols && d.cols == d_cols &&
            (wgrad ? b.cols == weight_cols && b.rows == a.rows : d.rows == a.rows),
        "expert_gemm: a, b and d fit each other");
  check(stream.device().kind() != DeviceKind::cuda || has_expert_gemm(stream.device(), args),
        "expert_gemm: has_expert_gemm() is true on a GPU");
  if (!wgrad && d.rows == 0) return;
  OCTET_DISPATCH_AS(stream, expert_gemm, args, profile_name_of(args.gemm_kind));
}

namespace cpu {
void grouped_gemm(const GroupedGemmArgs& args);
}  // namespace cpu
namespace cuda {
bool has_grouped_gemm(const GroupedGemmArgs& args);
bool has_grouped_tiles(const GroupedGemmArgs& args);
void grouped_gemm(Stream& stream, const GroupedGemmArgs& args);
}  // namespace cuda

namespace {

/// Returns whether GEMMs can read this operand: bf16, or E4M3 with scales of whole rows.
bool is_read(const Operand& x, DType dtype) {
  if (x.dtype != dtype) return false;
  return dtype == DType::bf16 ||
         (dtype == DType::e4m3 && x.scaling == Scaling::whole_rows && x.scale_inv != nullptr);
}

}  // namespace

bool has_grouped_gemm(const Device& device, const GroupedGemmArgs& args) {
  const std::string_view wish = grouped_wish();
  const DType dtype = args.weight.dtype;
  if ((dtype != DType::bf16 && dtype != DType::e4m3) || args.x.dtype != dtype) return false;
  if (args.d.dtype != DType::bf16 || wish == "never") return false;
  if (args.gated && args.activation == Activation::clamped) return false;
  if (device.kind() == DeviceKind::cpu) return wish == "always";
  return device.kind() == DeviceKind::cuda && cuda::has_grouped_gemm(args);
}

bool wants_rows_in_order(const Device& device, const GroupedGemmArgs& args) {
  constexpr std::int64_t of_expert = 4;
  if (device.kind() == DeviceKind::cpu) return args.d.rows >= of_expert * args.count;
  return device.kind() == DeviceKind::cuda && cuda::has_grouped_tiles(args);
}

void grouped_gemm(Stream& stream, const GroupedGemmArgs& args) {
  if (args.d.rows == 0) return;
  const Operand& w = args.weight;
  check(w.data != nullptr && is_read(w, w.dtype) && args.count > 0 && w.rows % args.count == 0,
        "grouped_gemm: the weight is [experts * out, in] in bf16, or in E4M3 with scales of whole rows");
  check(args.x.data != nullptr && is_read(args.x, w.dtype) && args.x.cols == w.cols,
        "grouped_gemm: x is [tokens, in] of the weight's kind");
  const std::int64_t out = w.rows / args.count;
  check(!args.gated || out % 2 == 0, "grouped_gemm: gate and up have as many rows");
  check(is_matrix(args.d) && args.d.dtype == DType::bf16 && args.d.cols == (args.gated ? out / 2 : out),
        "grouped_gemm: d is [rows, out] bf16, of gated ones [rows, out / 2]");
  check(args.begins != nullptr && (args.source != nullptr || args.x.rows >= args.d.rows),
        "grouped_gemm: every row has an expert and a row of x");
  OCTET_DISPATCH(stream, grouped_gemm, args);
}

}  // namespace octet::ops
