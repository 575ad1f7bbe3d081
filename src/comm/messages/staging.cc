// Staging memory of collectives over messages.
#include <algorithm>

#include "messages/transport_collectives.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

// Elements of all parts of one staging set. Chunks of the reduce queue stay near 512 KiB at four ranks, so a
// sum finds them in the cache. The gather queue stages only values in a narrow format.
constexpr std::int64_t reduce_elements = std::int64_t{1} << 19;
constexpr std::int64_t gather_elements = std::int64_t{1} << 18;
// Fewest elements of a part. A reduction of 1,024 ranks still sends 48 KiB to each rank at a time.
constexpr std::int64_t least_reduce_part = 96 * ops::kWireBlock;
constexpr std::int64_t least_gather_part = 8 * ops::kWireBlock;

Staging sized_staging(int size, std::int64_t elements, std::int64_t least) {
  Staging staging{.size = size};
  if (size == 1) return staging;
  staging.chunk = std::max(elements / size / ops::kWireBlock * ops::kWireBlock, least);
  staging.arrive_bytes = index(staging.chunk) * sizeof(float);
  for (const Wire wire : {Wire::bf16, Wire::fp8, Wire::int8})
    staging.leave_bytes = std::max(staging.leave_bytes, ops::wire_bytes(wire, staging.chunk));
  return staging;
}

}  // namespace

Staging reduce_staging(int size) {
  return sized_staging(size, reduce_elements, least_reduce_part);
}
Staging gather_staging(int size) {
  return sized_staging(size, gather_elements, least_gather_part);
}

void Staging::take(std::byte* memory) {
  arrive = memory;
  if (memory != nullptr) leave = memory + index(staging_sets * size) * arrive_bytes;
}

}  // namespace octet::comm
