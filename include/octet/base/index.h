// Numbers as indices of containers.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octet {

/// Returns `i`, which is not negative, as an index of a container.
constexpr std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace octet
