// The noise of embeddings, equal on CPU and CUDA.
#pragma once

#include <array>
#include <cstdint>

#include "octet/base/random.h"

namespace octet::ops {

/// Returns the numbers u of elements 4 * block … 4 * block + 3 of a token, in [-1, 1).
constexpr std::array<float, 4> noise_of(std::uint64_t name, std::uint32_t block) {
  const auto bits = philox_rounds<7>(static_cast<std::uint32_t>(name), static_cast<std::uint32_t>(name >> 32),
                                     block, static_cast<std::uint32_t>(RandomUse::noise), 0, 0);
  std::array<float, 4> u{};
  for (std::size_t i = 0; i < 4; ++i) u[i] = 2.0f * uniform(bits[i]) - 1.0f;
  return u;
}

/// Returns the length of the document of a token.
constexpr std::int32_t length_at(const std::int32_t* cu_seqlens, std::int64_t documents, std::int64_t token) {
  std::int64_t first = 0, last = documents;  // cu_seqlens[first] <= token < cu_seqlens[last]
  while (last - first > 1) {
    const std::int64_t middle = (first + last) / 2;
    (cu_seqlens[middle] <= token ? first : last) = middle;
  }
  return cu_seqlens[first + 1] - cu_seqlens[first];
}

}  // namespace octet::ops
