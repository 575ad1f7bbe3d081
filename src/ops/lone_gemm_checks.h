// What GEMMs of very few tokens take.
#pragma once

#include "octet/ops/lone_gemm.h"

namespace octet::ops {

/// Throws std::logic_error where shapes or dtypes do not fit each other.
void check_lone_gemm(const LoneGemmArgs& args);

}  // namespace octet::ops
