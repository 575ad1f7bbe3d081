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
/// Sums are in fp32 and rounded once; on a GPU, a bf16 D_e that is added to is rounded twice. d overlaps
/// neither a nor b.
struct ExpertGemmArgs {
  Product product = Product::forward;
  ConstMatrix a;                         ///< [rows, in] or [rows, out]
  ConstMatrix b;                         ///< [count * out, in], or [rows, in]
  std::int64_t count = 0;                ///< experts, at most kMostExperts
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to the rows of a
  Matrix d;                              ///< [rows, out], [rows, in] bf16, or [count * out, in] f32 or bf16
  bool accumulate = false;               ///< for wgrad only
};

/// True if a device has a kernel for this: Hopper, for bf16, if in and out are multiples of 64. Checks only
/// dtypes, sizes and alignment. On a CPU, one GEMM per expert is faster. A CPU has it only if
/// OCTETRUN_GROUPED_GEMM=always is set (for tests).
bool has_expert_gemm(const Device& device, const ExpertGemmArgs& args);

/// Enqueues the products: on a GPU if has_expert_gemm() is true, on a CPU always.
void expert_gemm(Stream& stream, const ExpertGemmArgs& args);

}  // namespace octet::ops
