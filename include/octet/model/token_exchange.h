#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "octet/device/device.h"

namespace octet::model {

/// Messages among the ranks of an expert group (Share::expert_size). All ranks of the group make the same
/// calls.
class TokenExchange {
 public:
  virtual ~TokenExchange() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// Returns the numbers of all ranks, by rank: [size * own.size()]. Blocks the host.
  virtual std::vector<std::int32_t> gather(std::span<const std::int32_t> own) = 0;

  /// Rows of equal size in device memory, by the rank of the group that they are sent to or come from.
  struct Rows {
    const void* from = nullptr;
    std::span<const std::int64_t> sent;      ///< [size] rows for each rank, this rank too
    void* to = nullptr;                      ///< does not overlap `from`
    std::span<const std::int64_t> received;  ///< [size] rows from each rank
    std::size_t row_bytes = 0;
  };
  /// Enqueues the exchange in the order of `compute`. `name` is for traces and must stay valid.
  virtual void exchange(Stream& compute, const char* name, const Rows& rows) = 0;
};

}  // namespace octet::model
