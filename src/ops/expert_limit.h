// The limit of the rows of an expert, equal on CPU and CUDA.
#pragma once

#include <cstdint>

namespace octet::ops {

/// Returns the number of a row's expert. An expert that dropped the row is stored as -1 - number.
constexpr std::int32_t expert_number(std::int32_t stored) {
  return stored < 0 ? -1 - stored : stored;
}

/// Returns a number that orders weights by their bits: a larger weight has a larger number, and a NaN has the
/// largest.
constexpr std::uint32_t weight_order(std::uint32_t bits) {
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0xFFFFFFFFu;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

}  // namespace octet::ops
