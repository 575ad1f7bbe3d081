#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/device.h"

namespace octet {

/// Slices that a snapshot copies, by the time of their next write.
struct SnapshotSources {
  std::vector<TensorSlice> still;   ///< device memory that is not written before HostSnapshot::fence
  std::vector<TensorSlice> moving;  ///< device memory that may be written as soon as take() returns
  std::vector<TensorSlice> host;    ///< host memory that may be written as soon as take() returns
};

/// Host memory, reserved once, that stores the values of slices at one moment while the device continues.
/// Each run of at least 128 KiB has the same offset modulo 4096 in the snapshot as in its tensor. Files with
/// tensors at multiples of 4096 can thus be written from the snapshot without the page cache. One thread
/// calls the functions, except wait().
class HostSnapshot {
 public:
  /// Reserves memory for slices of these sizes in `arena` under `name`: pinned memory, or device memory if
  /// the host can access it.
  HostSnapshot(Arena& arena, const std::string& name, const SnapshotSources& sizes);
  HostSnapshot(const HostSnapshot&) = delete;
  HostSnapshot& operator=(const HostSnapshot&) = delete;

  /// Begins to copy slices of the sizes given to the constructor, on a separate stream. Waits for the copies
  /// of all slices except `still`. Work that writes the slices must be complete, and nothing may still read
  /// the previous copy. Returns the slices in the snapshot, with dense rows: first `moving`, then `host`,
  /// then `still`. Their contents are valid after wait().
  std::vector<TensorSlice> take(const SnapshotSources& from);
  /// Makes work that is later enqueued on `stream` run after the copy. This work may write the `still`
  /// slices.
  void fence(Stream& stream);
  /// Blocks until the copy is complete. Callable on any thread.
  void wait() { stream_->synchronize(); }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> copied_;
  std::byte* memory_ = nullptr;  ///< aligned to 4096
  std::size_t bytes_ = 0;
  bool open_ = false;  ///< a copy was begun, and no stream waits for it yet
};

}  // namespace octet
