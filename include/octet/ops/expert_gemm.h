// The GEMMs of the experts of a mixture: of many tokens in training, and of few tokens each as one kernel.
#pragma once

#include <cstdint>

#include "octet/ops/gated_activation.h"
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

// The GEMMs of the experts of a mixture with few tokens each, as one kernel. The kernel reads the number of
// rows of each expert from device memory, so the host does not wait for it.

/// For each expert e and row r with begins[e] <= r < begins[e + 1]: d[r] = x[source[r]] · weight_eᵀ, summed
/// in fp32 and rounded once. On a GPU in E4M3, sums of 128 values keep about 14 bits. Gated: the weight of an
/// expert is gate, then up. Both products are rounded, and d[r] = activation(gate) * up.
struct GroupedGemmArgs {
  Operand weight;          ///< [experts * out, in], dense: bf16, or E4M3 with scales of whole rows
  std::int64_t count = 0;  ///< number of experts
  Operand x;               ///< [tokens, in] of the same format as the weight
  const std::int32_t* source = nullptr;  ///< [rows]: row of x for each row of d; null: row r
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to the number of rows of d
  bool gated = false;
  Activation activation = Activation::silu;
  Matrix d;  ///< [rows, out], if gated [rows, out / 2], bf16; does not overlap x
};

/// True if grouped_gemm has a kernel for this on a GPU. No device has one for Activation::clamped. GPUs other
/// than Hopper need so few rows that memory traffic of the weights determines the time. Checks only dtypes,
/// sizes and alignment. A CPU has one only if OCTETRUN_GROUPED_GEMM=always is set (for tests; a CPU gains
/// nothing).
bool has_grouped_gemm(const Device& device, const GroupedGemmArgs& args);

/// True if x should be gathered before, with a null `source`: the kernel for many rows requires it. Checks
/// only sizes. On a CPU it is true from four rows per expert on average, so that tests cover both cases.
bool wants_rows_in_order(const Device& device, const GroupedGemmArgs& args);

/// Enqueues the GEMMs. On a GPU, requires has_grouped_gemm(). A CPU accepts all arguments, but one gemm() per
/// expert is faster.
void grouped_gemm(Stream& stream, const GroupedGemmArgs& args);

}  // namespace octet::ops
