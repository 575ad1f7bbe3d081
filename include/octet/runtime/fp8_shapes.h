#pragma once

#include <string>
#include <vector>

#include "octet/base/error.h"

namespace octet::runtime {

/// What to do if the shapes of a model keep GEMMs from FP8.
inline constexpr const char* kFp8Shapes =
    "make hidden_size, intermediate_size and the widths of heads multiples of 16, or take another fp8_recipe";

/// Returns the problem that ends a run with `fp8_fallback: error` when these GEMMs are not computed in FP8.
inline Problem fp8_refusal(const std::vector<std::string>& fallbacks) {
  std::string found;
  for (const std::string& line : fallbacks) found += (found.empty() ? "" : "\n") + line;
  return {.what = "a GEMM that should run in FP8 cannot",
          .expected = "FP8 GEMMs in the linear layers, as fp8_fallback: error asks for",
          .found = found,
          .fix = std::string(kFp8Shapes) + ", or set fp8_fallback: warn",
          .code = ExitCode::usage};
}

}  // namespace octet::runtime
