#pragma once

#include <string_view>

#include "octet/base/environment.h"

namespace octet::ops {

/// The value of OCTETRUN_GROUPED_GEMM: "always", "never", "hopper", or empty.
inline std::string_view grouped_wish() {
  const char* set = environment_variable("OCTETRUN_GROUPED_GEMM");
  return set == nullptr ? "" : set;
}

}  // namespace octet::ops
