#include "octet/ops/gemm.h"

#include <algorithm>

#include "cuda/scratch.h"
#include "dispatch.h"
#include "gemm_plan.h"

namespace octet::ops {

namespace cpu {
void gemm(const GemmArgs& args);
std::size_t gemm_workspace(const GemmArgs& args);
}  // namespace cpu
namespace cuda {
GemmOutcome gemm(Stream& stream, const GemmArgs& args);
std::string gemm_machine(const Device& device);
std::string why_no_fp8_gemm(const Device& device);
std::string autotuned_gemms(const Device& device);
void learn_autotuned_gemms(const Device& device, const std::string& text);
void set_gemm_choosing(const Device& device, bool choosing);
}  // namespace cuda

namespace {

void check_operand(const Operand& x) {
  check(x.rows >= 0 && x.cols >= 0, "gemm: the sizes of the operands are 0 or more");
  check(x.dtype == DType::f32 || x.dtype == DType::bf16 || is_fp8(x.dtype),
        "gemm: operands are f32, bf16 or FP8");
}

/// Checks that the copies and scales that a GEMM with block scales reads exist.
void check_block_copies(const Device& device, const GemmArgs& args) {
  const auto row = [](const Operand& x) { return x.data && x.scale_inv; };
  const auto has_transposed = [](const Operand& x) { return x.transposed && x.transposed_scale_inv; };
  const bool wgrad = args.gemm_kind == GemmKind::wgrad;
  const bool b_transposed = wgrad || (args.gemm_kind == GemmKind::dgrad && gemm_needs_transposed_fp8(device));
  check(
      (wgrad ? has_transposed(args.a) : row(args.a)) && (b_transposed ? has_transposed(args.b) : row(args.b)),
      "gemm: operands with scales of blocks have the copies that the product reads, and their scales");
}

/// Checks shapes and dtypes. Data may still be missing (planning).
void check_shapes(const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  check_operand(a);
  check_operand(b);
  check(is_fp8(a.dtype) ? is_fp8(b.dtype) : a.dtype == b.dtype,
        "gemm: operands are both f32, both bf16 or both FP8");
  check(!(a.dtype == DType::e5m2 && b.dtype == DType::e5m2), "gemm: at most one operand is E5M2");
  const Scaling second = args.gemm_kind == GemmKind::wgrad ? Scaling::rows : Scaling::squares;
  const bool whole_rows = a.scaling == Scaling::whole_rows;
  check(!whole_rows || (a.dtype == DType::e4m3 && b.dtype == DType::e4m3 && b.scaling == a.scaling &&
                        args.gemm_kind == GemmKind::forward && !args.accumulate),
        "gemm: with scales of whole rows, E4M3 is multiplied forward and nothing is accumulated");
  check(whole_rows || (a.scaling == Scaling::tensor
                           ? b.scaling == Scaling::tensor
                           : is_fp8(a.dtype) && a.scaling == Scaling::rows && b.scaling == second),
        "gemm: with scales of blocks, activations and gradients are scaled by rows, weights by squares");
  const bool by_rows = args.gemm_kind == GemmKind::wgrad;
  const std::int64_t inner_a = by_rows ? a.rows : a.cols;
  const std::int64_t inner_b = args.gemm_kind == GemmKind::forward ? b.cols : b.rows;
  check(inner_a == inner_b, "gemm: the inner dimensions of both operands agree");
  check(args.d.rows == (by_rows ? a.cols : a.rows), "gemm: D has the rows of the product");
  check(args.d.cols == (args.gemm_kind == GemmKind::forward ? b.rows : b.cols),
        "gemm: D has the columns of the product");
  check(args.d.dtype == DType::f32 || args.d.dtype == DType::bf16, "gemm: D is f32 or bf16");
  check(args.d.ld >= args.d.cols, "gemm: the rows of D do not overlap");
  check((args.a_ld == 0 || (args.a_ld >= a.cols && !is_fp8(a.dtype))) &&
            (args.b_ld == 0 || (args.b_ld >= b.cols && !is_fp8(b.dtype))),
        "gemm: only the rows of a wider matrix in f32 or bf16 lie apart");
  check(args.factor == 1.0f || !is_fp8(a.dtype), "gemm: FP8 operands have scales in place of a factor");
  check(args.bias == nullptr || args.gemm_kind == GemmKind::forward, "gemm: only forward adds a bias");
  const ConstMatrix& addend = args.addend;
  check(addend.data == nullptr ||
            (!args.accumulate && addend.data != args.d.data && addend.dtype == args.d.dtype &&
             addend.rows == args.d.rows && addend.cols == args.d.cols && addend.ld == args.d.ld),
        "gemm: an addend has the shape, dtype and ld of D and lies elsewhere, and nothing is accumulated");
}

GemmOutcome dispatch(Stream& stream, const GemmArgs& args) {
  if (stream.device().kind() == DeviceKind::cuda) {
    const ProfileSection section(stream, profile_name_of(args.gemm_kind));
    return cuda::gemm(stream, args);  // only this call can report that the library refuses
  }
  OCTET_DISPATCH_AS(stream, gemm, args, profile_name_of(args.gemm_kind));
  return stream.device().kind() == DeviceKind::dry ? GemmOutcome{} : gemm_outcome(stream.device(), args);
}

}  // namespace

GemmOutcome gemm(Stream& stream, const GemmArgs& args) {
  check_shapes(args);
  if (args.d.rows == 0 || args.d.cols == 0) return {};
  const bool inner = args.a.rows > 0 && args.a.cols > 0;
  check(args.d.data != nullptr, "gemm: D has data");
  if (inner && args.a.scaling != Scaling::tensor) {
    check_block_copies(stream.device(), args);
  } else {
    check(!inner || (args.a.data != nullptr && args.b.data != nullptr), "gemm: operands have data");
  }
  return dispatch(stream, args);
}

std::size_t gemm_workspace(const Device& device, const GemmArgs& args) {
  check_shapes(args);
  if (device.stands_for() != DeviceKind::cuda) return cpu::gemm_workspace(args);
  const std::size_t there = cuda::gemm_workspace(args);
  return device.kind() == DeviceKind::cpu ? std::max(there, cpu::gemm_workspace(args)) : there;
}

bool gemm_needs_transposed_fp8(const Device& device) {
  return device.planned_traits().needs_transposed_fp8;
}

std::string why_no_fp8_gemm(const Device& device) {
  return device.kind() == DeviceKind::cuda ? cuda::why_no_fp8_gemm(device) : std::string();
}

std::int64_t fp8_token_unit(const Device& device, Scaling scaling) {
  if (!gemm_needs_transposed_fp8(device)) return 1;
  // Only forward GEMMs have scales of whole rows, and they do not sum over tokens.
  if (scaling == Scaling::whole_rows) return 1;
  return scaling == Scaling::tensor ? 16 : kScaleBlock;
}

GemmOutcome gemm_outcome(const Device& device, const GemmArgs& args) {
  check_shapes(args);
  const GemmPlan plan = plan_gemm(args);
  if (args.d.rows == 0 || args.d.cols == 0 || plan.k == 0) return {};
  // A CPU that simulates a GPU plans and lays out memory like the GPU, but multiplies like a CPU.
  const DeviceKind kind = device.kind() == DeviceKind::dry ? device.stands_for() : device.kind();
  if (is_fp8(args.a.dtype) && kind == DeviceKind::cpu)
    return outcome_of(args, GemmWay::emulated, GemmReason::none, 1);
  return outcome_of(args, plan.way, plan.reason, 1);
}

std::string gemm_machine(const Device& device) {
  return device.kind() == DeviceKind::cuda ? cuda::gemm_machine(device) : std::string();
}

std::string autotuned_gemms(const Device& device) {
  return device.kind() == DeviceKind::cuda ? cuda::autotuned_gemms(device) : std::string();
}

void learn_autotuned_gemms(const Device& device, const std::string& text) {
  if (device.kind() == DeviceKind::cuda) cuda::learn_autotuned_gemms(device, text);
}

void set_gemm_choosing(const Device& device, bool choosing) {
  if (device.kind() == DeviceKind::cuda) cuda::set_gemm_choosing(device, choosing);
}

}  // namespace octet::ops
