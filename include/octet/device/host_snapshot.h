#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/device.h"

namespace octet {

/// Slices that a snapshot copies, by who writes them next.
struct SnapshotSources {
  std::vector<TensorSlice> still;   ///< device memory that nobody writes before HostSnapshot::fence
  std::vector<TensorSlice> moving;  ///< device memory that may be written as soon as take() is back
  std::vector<TensorSlice> host;    ///< host memory, likewise
};

/// Host memory, reserved once, that holds what slices were at one moment, whatever becomes of them: the
/// device goes on meanwhile. Every run of 128 KiB and more lies as far behind a multiple of 4096 as in its
/// tensor, so that files whose tensors begin at such multiples can be written from it without the page cache.
/// One thread calls its functions, but for wait().
class HostSnapshot {
 public:
  /// Reserves in `arena`, under `name`, what slices of these sizes take: pinned memory, or the device's where
  /// the host reaches that.
  HostSnapshot(Arena& arena, const std::string& name, const SnapshotSources& sizes);
  HostSnapshot(const HostSnapshot&) = delete;
  HostSnapshot& operator=(const HostSnapshot&) = delete;

  /// Begins to copy slices, of the sizes given at the start, on a stream of its own, and waits for what is
  /// not `still`. Work that writes them must be complete, and nobody may read the copy before. Returns where
  /// they lie in the snapshot, all of them behind each other; they hold what they should after wait().
  std::vector<TensorSlice> take(const SnapshotSources& from);
  /// What is enqueued on `stream` from now on runs when the copy is made, and may write what was `still`.
  void fence(Stream& stream);
  /// Blocks until the copy is made, on any thread.
  void wait() { stream_->synchronize(); }

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::unique_ptr<Event> copied_;
  std::byte* memory_ = nullptr;  ///< on a multiple of 4096
  std::size_t bytes_ = 0;
  bool open_ = false;  ///< a copy was begun that no stream was told to wait for
};

}  // namespace octet
