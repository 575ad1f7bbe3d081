// Contract checks of GEMMs of very few tokens.
#pragma once

#include "octet/ops/decode_gemm.h"

namespace octet::ops {

/// Throws std::logic_error if shapes or dtypes do not match.
void check_decode_gemm(const DecodeGemmArgs& args);

}  // namespace octet::ops
