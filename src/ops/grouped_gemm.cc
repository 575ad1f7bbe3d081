#include "octet/ops/grouped_gemm.h"

#include <string_view>

#include "checks.h"
#include "dispatch.h"
#include "grouped_wish.h"

namespace octet::ops {

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
