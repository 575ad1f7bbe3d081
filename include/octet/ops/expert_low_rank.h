// The GEMMs of the adapters of a mixture's experts. Rows are in the order of their experts (DealArgs), and
// one op multiplies all experts.
#pragma once

#include <cstdint>

#include "octet/ops/gemm.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// For every expert e with rows begins[e] <= r < begins[e + 1] of a and its matrix W_e, [out, in]:
///   forward  d[r] = factor * a[r] · W_eᵀ         b: W of the first expert
///   dgrad    d[r] = factor * a[r] · W_e          b: W of the first expert
///   wgrad    D_e  = factor * Σ_r a[r]ᵀ · b[r]    d: D of the first expert
/// With `accumulate`, the product is added to d. Without rows, D_e is then unchanged, and otherwise 0.
///
/// Operands are both f32 or both bf16. d has their dtype; in wgrad it may also be f32.
/// Sums are in fp32. A GPU rounds once, after the addition to d. A CPU computes gemm() for each expert. The
/// bits depend only on values and shapes. d overlaps neither a nor b.
struct ExpertLowRankArgs {
  GemmKind gemm_kind = GemmKind::forward;
  ConstMatrix a;                         ///< [rows, in], or [rows, out] of dgrad and wgrad
  ConstMatrix b;                         ///< [out, in] without gaps between its rows, or [rows, in] of wgrad
  std::int64_t step = 0;                 ///< elements from the matrix of an expert to the next: of b, or of d
  std::int64_t count = 0;                ///< experts, at most kMostExperts
  const std::int32_t* begins = nullptr;  ///< [count + 1], from 0 to the rows of a
  Matrix d;                              ///< [rows, out], or [rows, in] of dgrad, or [out, in] of wgrad
  float factor = 1.0f;
  bool accumulate = false;
};

/// The largest `out` or `in` that is a rank for a GPU.
inline constexpr std::int64_t kMostLowRank = 128;

/// True if a device has kernels for this. A GPU needs bf16 operands, compute capability 8.0, and `out` or
/// `in` of at most kMostLowRank. Both, pitches, and `step` must be multiples of 8, and data aligned to 16
/// bytes. Checks only dtypes, sizes and alignment. A dry device answers for a CPU, or for such a GPU. On a
/// CPU, the op saves nothing, so it is true only if OCTETRUN_GROUPED_GEMM=always is set (for tests).
bool has_expert_low_rank(const Device& device, const ExpertLowRankArgs& args);

/// Enqueues the GEMMs: on a GPU if has_expert_low_rank() is true, on a CPU always.
void expert_low_rank(Stream& stream, const ExpertLowRankArgs& args);

}  // namespace octet::ops
