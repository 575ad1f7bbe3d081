// Contract checks of GEMMs of very few tokens.
#pragma once

#include "octet/ops/lone_gemm.h"

namespace octet::ops {

/// Throws std::logic_error if shapes or dtypes do not match.
void check_lone_gemm(const LoneGemmArgs& args);

}  // namespace octet::ops
