// How products with FP8 operands are done on a GPU: what its library asks of them decides. In every build, so
// that it is known, and tested, on machines without a GPU.
#pragma once

#include <cstdint>

#include "octet/ops/gemm.h"

namespace octet::ops {

/// An operand as the product reads it: [outer, k] when inner, else [k, outer]; dense.
struct GemmSide {
  const void* data = nullptr;
  bool inner = true;
  DType dtype = DType::f32;
  std::int64_t outer = 0;
  const float* scale_inv = nullptr;
  Scaling scaling = Scaling::tensor;
};

/// What is multiplied, and how: of FP8 operands GemmWay::fp8, filled or decoded, of others their own way.
struct GemmPlan {
  GemmSide a, b;
  std::int64_t k = 0;
  GemmWay way = GemmWay::none;
  GemmReason reason = GemmReason::none;
};

/// FP8 goes to the library as it is when its rules hold (both operands with the inner dimension in rows, that
/// and the columns of D multiples of 16, everything on 16-byte boundaries). An inner dimension that is no
/// multiple of 16 is filled up with zeros; anything else is decoded. Scales of blocks are read where they
/// lie; nothing can be filled in between.
GemmPlan plan_gemm(const GemmArgs& args);

/// True on a 16-byte boundary, which null is on.
inline bool on_boundary(const void* address) {
  return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
}

/// What a plan comes to: `calls` products of the library.
GemmOutcome outcome_of(const GemmArgs& args, GemmWay way, GemmReason reason, std::int64_t calls);

}  // namespace octet::ops
