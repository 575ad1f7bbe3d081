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

}  // namespace octet::comm
