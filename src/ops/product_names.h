#pragma once

#include "octet/ops/gemm.h"

namespace octet::ops {

/// The name of a GEMM in profiles.
inline const char* profile_name_of(Product product) {
  if (product == Product::forward) return "product forward";
  return product == Product::dgrad ? "product dgrad" : "product wgrad";
}

}  // namespace octet::ops
