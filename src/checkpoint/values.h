// Iteration over the values of a checkpoint's tensor, chunk by chunk.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "octet/checkpoint/checkpoint.h"

namespace octet::checkpoint {

/// The elements of one chunk.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
};
ElementRange range_of(const CheckpointTensor& tensor, std::int64_t chunk);

/// Returns the bytes of a range as stored.
std::vector<std::byte> read_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor,
                                  const ElementRange& range, bool verify);
/// Returns elements of any dtype as doubles; exact except for int64 beyond 2^53.
std::vector<double> to_doubles(DType dtype, const std::vector<std::byte>& bytes, std::int64_t count);

/// Calls `take(first element, values)` for each range, in order.
void each_range(const Checkpoint& checkpoint, const CheckpointTensor& tensor, bool verify,
                const std::function<void(std::int64_t, const std::vector<double>&)>& take);

}  // namespace octet::checkpoint
