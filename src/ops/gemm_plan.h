// How a GPU computes GEMMs with FP8 operands: the rules of cuBLASLt decide. Compiled in every build, so that
// machines without a GPU can plan and test it.
#pragma once

#include <cstdint>

#include "octet/ops/gemm.h"

namespace octet::ops {

/// The name of a GEMM in profiles.
inline const char* profile_name_of(GemmKind gemm_kind) {
  if (gemm_kind == GemmKind::forward) return "product forward";
  return gemm_kind == GemmKind::dgrad ? "product dgrad" : "product wgrad";
}

/// An operand as the GEMM reads it, dense: [outer, k] if inner, else [k, outer].
struct GemmSide {
  const void* data = nullptr;
  bool inner = true;
  DType dtype = DType::f32;
  std::int64_t outer = 0;
  const float* scale_inv = nullptr;
  Scaling scaling = Scaling::tensor;
};

/// The operands and the way of a GEMM. FP8 operands use GemmWay::fp8, filled or decoded; other operands use
/// the way of their dtype.
struct GemmPlan {
  GemmSide a, b;
  std::int64_t k = 0;
  GemmWay way = GemmWay::none;
  GemmReason reason = GemmReason::none;
};

/// FP8 operands are passed to the library directly if its rules hold: both operands have the inner dimension
/// in rows; the inner dimension and the columns of D are multiples of 16; all addresses are 16-byte aligned.
/// An inner dimension that is not a multiple of 16 is filled up with zeros. All other operands are decoded.
/// Block scales are read in place, so operands with block scales cannot be filled up.
GemmPlan plan_gemm(const GemmArgs& args);

/// Returns true if the address is 16-byte aligned or null.
inline bool on_boundary(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

/// Returns the outcome of a plan with `calls` library GEMMs.
GemmOutcome outcome_of(const GemmArgs& args, GemmWay way, GemmReason reason, std::int64_t calls);

}  // namespace octet::ops
