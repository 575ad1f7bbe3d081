// Staging memory of the collectives of a queue.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/comm/collectives.h"

namespace octet::comm {

/// Staging memory of the chunks under way in a queue. Two sets, each with receive and send parts of equal
/// size for every member. Equal layout on all members.
struct DeviceStaging {
  static constexpr int sets = 2;
  std::byte* memory = nullptr;
  std::size_t part = 0;  ///< bytes
  int size = 0;

  /// Returns the part size for `size` members, given the bytes of one set in one direction.
  static std::size_t part_of(int size, std::size_t budget);
  static std::size_t bytes(int size, std::size_t part) {
    return 2 * sets * static_cast<std::size_t>(size) * part;
  }
  /// Returns the number of elements of a chunk that fit into a part when encoded.
  std::int64_t chunk_of(Wire wire) const;
  std::byte* set(std::int64_t chunk) const {
    return memory + static_cast<std::size_t>(chunk % sets) * set_bytes();
  }
  std::size_t set_bytes() const { return 2 * static_cast<std::size_t>(size) * part; }
  std::byte* arriving(std::int64_t chunk, int member) const {
    return set(chunk) + static_cast<std::size_t>(member) * part;
  }
  std::byte* leaving(std::int64_t chunk, int member) const {
    return set(chunk) + static_cast<std::size_t>(size + member) * part;
  }
};

}  // namespace octet::comm
