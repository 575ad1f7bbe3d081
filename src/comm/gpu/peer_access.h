// Access of ranks to each other's memory on one host, and waits between their streams. Streams write and
// await counters in memory. Handles let another rank open memory of this rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "octet/device/device.h"

namespace octet::comm {

/// Writes a counter, or waits for it.
struct CounterStep {
  std::uint32_t* counter = nullptr;
  std::uint32_t value = 0;
  bool waits = false;
};

/// Bytes to copy.
struct Piece {
  const void* from = nullptr;
  void* to = nullptr;
  std::size_t bytes = 0;
};

class PeerAccess {
 public:
  /// Maximum number of pieces, and of counters, of one move().
  static constexpr std::size_t most_moved = 16;

  virtual ~PeerAccess() = default;
  /// Enqueued: sets the counter to `value` after all earlier work of the stream is done and visible to every
  /// reader of the new value. The counter is in device memory of this rank, in opened memory, or in pinned
  /// host memory.
  virtual void write(Stream& stream, std::uint32_t* counter, std::uint32_t value) = 0;
  /// Enqueued: later work of the stream starts after the counter has reached `value`. Comparison is modular:
  /// values up to 2^31 - 1 steps beyond it also count. Occupies neither the host nor the device's processors.
  virtual void wait(Stream& stream, const std::uint32_t* counter, std::uint32_t value) = 0;
  /// Enqueues several steps in order as one operation, because each separate step costs a GPU 1 to 2
  /// microseconds.
  virtual void steps(Stream& stream, std::span<const CounterStep> steps) = 0;
  /// Enqueued: writes `first`, if any, when the stream reaches this point. Then copies the pieces, to memory
  /// of this rank or opened memory. Then writes the counters of `then`, after all pieces are visible to every
  /// reader of them. None of these steps waits. For a few small pieces: it is one kernel, while copy engines
  /// and separate counters cost a GPU several microseconds to start. `ticket` is a word of this rank's device
  /// memory, initially zero, that no other stream uses.
  virtual void move(Stream& stream, const std::optional<CounterStep>& first, std::span<const Piece> pieces,
                    std::span<const CounterStep> then, std::uint32_t* ticket) = 0;
  /// Enqueued, for tests: delays later work of the stream.
  virtual void delay(Stream& stream, std::chrono::microseconds time) = 0;
  /// Enqueued, for tests: work that fails, so all later work of the device fails too.
  virtual void fault(Stream& stream) = 0;

  /// Returns a handle by which another rank of this host opens the memory at `address`, which is in a
  /// reservation.
  virtual std::string handle(void* address) = 0;
  /// Returns the address of the memory in this rank. Stays open until close() or the end of this object.
  /// Throws Error.
  virtual void* open(const std::string& handle) = 0;
  /// Closes memory; `opened` is the result of open().
  virtual void close(void* opened) = 0;
};

/// For ranks that are threads of this process. Waiting streams call `alive` now and then and rethrow its
/// exceptions.
std::unique_ptr<PeerAccess> make_memory_peer_access(std::function<void()> alive);

/// For GPUs of one host (CUDA's interprocess memory and stream memory operations). `device` must outlive it.
std::unique_ptr<PeerAccess> make_cuda_peer_access(Device& device);

}  // namespace octet::comm
