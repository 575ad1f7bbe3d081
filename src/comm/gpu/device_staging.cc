#include "gpu/device_staging.h"

#include <algorithm>

#include "octet/ops/wire.h"

namespace octet::comm {

std::size_t DeviceStaging::part_of(int size, std::size_t budget) {
  // A multiple of the block size of every wire format and of the vector width of byte copies.
  constexpr std::size_t unit = 4 * ops::kWireBlock * 33;
  return std::max(budget / static_cast<std::size_t>(size) / unit, std::size_t{1}) * unit;
}

std::int64_t DeviceStaging::chunk_of(Wire wire) const {
  const std::size_t blocks = part / ops::wire_bytes(wire, ops::kWireBlock);
  return static_cast<std::int64_t>(blocks) * ops::kWireBlock;
}

std::size_t StagingBudget::share_of(DeviceKind kind) {
  return kind == DeviceKind::cuda ? 1 : 100;
}

StagingBudget staging_budget(int size, DeviceKind kind) {
  // A chunk and its addends fit into the second-level cache of a GPU. Smaller chunks wait for each other more
  // often. The gather queue stages only values in a narrow format.
  const std::size_t share = StagingBudget::share_of(kind);
  const std::size_t reduce_set = (std::size_t{32} << 20) / share;
  const std::size_t gather_set = (std::size_t{16} << 20) / share;
  StagingBudget budget{.size = size};
  // Includes room for the count of direct sums after the counters of the second queue.
  const std::size_t counted = peer_counter_count(size) * sizeof(std::uint32_t) + sizeof(std::uint64_t);
  budget.counters = (counted + 255) / 256 * 256;
  budget.gather_part = DeviceStaging::part_of(size, gather_set);
  budget.reduce_part = DeviceStaging::part_of(size, reduce_set);
  // One kernel sends eager messages to as many members as move() takes pieces and counters. Copy engines are
  // faster above one megabyte.
  if (static_cast<std::size_t>(size) <= PeerAccess::most_moved) {
    constexpr std::size_t longest = std::size_t{1} << 20, all = std::size_t{1} << 21;
    budget.eager_room = std::min(longest, all / static_cast<std::size_t>(size)) / share / 256 * 256;
  }
  // Each rank sends its values to every other rank, plus an equal number of bytes of marks. For more values,
  // sums in two exchanges are faster.
  if (size > 1 && size <= ops::kMostPeers) {
    constexpr std::size_t all = std::size_t{1} << 20;
    budget.sum_room = all / static_cast<std::size_t>(size - 1) / share / 256 * 256;
  }
  return budget;
}

}  // namespace octet::comm
