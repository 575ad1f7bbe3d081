// GEMMs of so few tokens that they are bound by reading the weight.
#pragma once

#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

/// Enqueues a forward product of bf16 operands with few rows of A (at most 16, or as OCTETRUN_FEW_ROWS says);
/// false, and nothing is enqueued, for any other, and where rows do not lie on 16-byte boundaries or the
/// inner dimension is no multiple of 32. Sums are in fp32 and rounded once; their order depends on the inner
/// dimension alone.
bool multiply_few_rows(Stream& stream, const GemmArgs& args);

}  // namespace octet::ops::cuda
