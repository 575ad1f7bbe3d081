// The elements that dropout keeps, equal on CPU and CUDA.
#pragma once

#include <array>
#include <cstdint>

#include "octet/base/random.h"

namespace octet::ops {

struct DropoutRule {
  constexpr DropoutRule(std::uint64_t module, float rate)
      : key(module),
        first_kept(static_cast<std::uint32_t>(static_cast<double>(rate) * 0x1p32)),
        kept(1.0f / (1.0f - rate)) {}

  /// Returns the random numbers of elements 4 * block … 4 * block + 3 of a token.
  constexpr std::array<std::uint32_t, 4> numbers(std::uint64_t name, std::uint32_t block) const {
    return philox_rounds<7>(static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32), block,
                            static_cast<std::uint32_t>(RandomUse::dropout), static_cast<std::uint32_t>(key),
                            static_cast<std::uint32_t>(key >> 32));
  }
  /// Returns the factor of an element with this random number.
  constexpr float factor(std::uint32_t number) const { return number >= first_kept ? kept : 0.0f; }

  std::uint64_t key;
  std::uint32_t first_kept;
  float kept;
};

}  // namespace octet::ops
