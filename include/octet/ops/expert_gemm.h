// The GEMMs of a mixture's experts in training. Rows are in the order of their experts (DealArgs), and all
// experts are multiplied by one kernel.
#pragma once

#include <cstdint>

#include "octet/ops/gemm.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// For every expert e with rows begins[e] <= r < begins[e + 1] of x and y, and its matrix W_e of the weight,
/// [out, in]:
///   forward  d[r] = a[r] · W_eᵀ        a: x, b: the weight
///   dgrad    d[r] = a[r] · W_e         a: the gradient of y, b: the weight
///   wgrad    D_e  = Σ_r a[r]ᵀ · b[r]   a: the gradient of y, b: x; added to D_e if `accumulate`, and 0
///   without rows
/// Operands are both bf16, or both FP8 with one scale per tensor, and one scale per expert for the weight. At
/// most `a` is E5M2. FP8 values are multiplied exactly, and the sum is multiplied by both scales. A GPU then
/// reads `transposed` of b in dgrad, which is [in, out] for each expert, and of a and b in wgrad.
///
/// Sums are in fp32 and rounded once; on a GPU, a bf16 D_e that is added to is rounded twice. NaN or infinity
/// in a row may reach D_e of the experts before and after it on a GPU. d overlaps neither a nor b.
struct ExpertGemmArgs {
  GemmKind gemm_kind = GemmKind::forward;
  Operand a;                             ///< [rows, in] or [rows, out]
  Operand b;                             ///< [count * out, in], or [rows, in]
  std::int64_t weight_scale_step = 0;    ///< FP8: floats between the scale_inv of two experts of the weight
  std::int64_t count = 0;                ///< experts, at most kMostExperts
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to at most the rows of a
  Matrix d;  ///< [rows, out] or [rows, in] bf16, or f32 on a CPU in FP8; [count * out, in] f32 or bf16
  bool accumulate = false;         ///< for wgrad only
  bool fast_accumulation = false;  ///< like GemmArgs::fast_accumulation
};

/// True if a device has a kernel for this: Hopper, for bf16 if in and out are multiples of 64, and for FP8 if
/// in, out, and in wgrad the rows, are multiples of 16. Checks only dtypes, sizes, alignment, and the
/// presence of transposed copies of FP8 operands that have data. A dry device answers for a CPU, or for
/// Hopper. A CPU has it for FP8. In bf16, one GEMM per expert is faster on a CPU, so it has it only if
/// OCTETRUN_GROUPED_GEMM=always is set, and with `hopper` it has it in FP8 with the rows of Hopper (for
/// tests).
bool has_expert_gemm(const Device& device, const ExpertGemmArgs& args);

/// Enqueues the GEMMs: on a GPU if has_expert_gemm() is true, on a CPU always.
void expert_gemm(Stream& stream, const ExpertGemmArgs& args);

}  // namespace octet::ops
