#pragma once

#include "octet/ops/gemm.h"

namespace octet::ops {

/// The name of a GEMM in profiles.
inline const char* profile_name_of(GemmKind gemm_kind) {
  if (gemm_kind == GemmKind::forward) return "product forward";
  return gemm_kind == GemmKind::dgrad ? "product dgrad" : "product wgrad";
}

}  // namespace octet::ops
