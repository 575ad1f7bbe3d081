#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/device.h"

namespace octet {

/// Host copies of slices of device memory: checkpoints, exports and probes read and write them. Memory that
/// the host can access (pinned memory, or all memory of a CPU) is not copied: its slices are returned
/// unchanged. Blocking; for the time between steps. Not thread-safe.
class HostMirror {
 public:
  explicit HostMirror(Device& device) : device_(device) {}

  /// Returns the slices with `data` in host memory. Slices in device memory are copied; work that writes them
  /// must be complete. The result is valid until the next call of fetch, open, send or clear.
  std::vector<TensorSlice> fetch(std::vector<TensorSlice> slices);
  /// Returns the host memory in bytes that the slices need, for plans. A dry device gives the bytes of
  /// the simulated device.
  static std::size_t bytes_for(const std::vector<TensorSlice>& slices, const Device& device);
  /// Like fetch(), but the contents are unspecified: the caller writes every element.
  std::vector<TensorSlice> open(std::vector<TensorSlice> slices);
  /// Copies the host memory of the last fetch or open back to the slices, and clears.
  void send();
  /// Releases the host memory.
  void clear();
  bool empty() const { return pieces_.empty(); }

 private:
  struct Piece {
    void* there = nullptr;
    std::size_t at = 0;  ///< in memory_
    std::size_t bytes = 0;
  };
  Stream& stream();

  Device& device_;
  std::unique_ptr<Stream> stream_;  ///< made when first needed
  std::unique_ptr<std::byte[]> memory_;
  std::vector<Piece> pieces_;
};

}  // namespace octet
