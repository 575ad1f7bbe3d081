#pragma once

#include <cstddef>
#include <cstdint>

namespace octet::comm {

/// A number of a rank, an element or a piece as containers take it. Must not be negative.
constexpr std::size_t index(std::int64_t i) {
  return static_cast<std::size_t>(i);
}

}  // namespace octet::comm
