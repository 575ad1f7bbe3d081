// Host copies of slices of device memory: for reading and writing, and as snapshots.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
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
