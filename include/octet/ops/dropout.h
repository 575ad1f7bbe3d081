#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// out[t, j] = x[t, j] / (1 - rate), or 0 with probability `rate` (Srivastava et al. 2014). The choice of
/// zeros depends only on names[t], `key` and j. Philox4x32-7 of counter (names[t], j / 4) under `key` gives
/// four numbers; number j % 4 decides. The CPU and the GPU drop the same elements.
struct DropoutArgs {
  ConstMatrix x;                         ///< [tokens, cols] T
  const std::uint64_t* names = nullptr;  ///< [tokens], device
  std::uint64_t key = 0;
  float rate = 0.0f;        ///< 0 <= rate < 1
  Matrix out;               ///< [tokens, cols] T; may be x itself
  bool accumulate = false;  ///< adds to out, and rounds the sum
};
void dropout(Stream& stream, const DropoutArgs& args);

}  // namespace octet::ops
