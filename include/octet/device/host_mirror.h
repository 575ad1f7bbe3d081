#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/device.h"

namespace octet {

/// Host memory that stands for slices of device memory: checkpoints, exports and probes read and write it.
/// What the host reaches itself, pinned memory or all of it, is not copied: such slices are what they were.
/// Blocking; for the time between steps. Not thread-safe.
class HostMirror {
 public:
  explicit HostMirror(Device& device) : device_(device) {}

  /// The slices with `data` in host memory: what lies in device memory is fetched (work that writes it must
  /// be complete). They are valid until the next call of fetch, send or clear.
  std::vector<TensorSlice> fetch(std::vector<TensorSlice> slices);
  /// Host memory that it takes for them, for plans; a dry device answers for the one that it stands for.
  static std::size_t bytes_for(const std::vector<TensorSlice>& slices, const Device& device);
  /// The same with unspecified contents, for those who write every element.
  std::vector<TensorSlice> open(std::vector<TensorSlice> slices);
  /// Writes the host memory of the last fetch or open back to where the slices lie, and clears.
  void send();
  /// Gives the host memory back.
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
