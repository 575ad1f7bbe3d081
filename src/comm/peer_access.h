// How ranks of one host reach each other's memory, and how their streams wait for each other: counters in
// memory that streams write and wait for, and handles by which another rank opens memory of this one.
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

/// Writing a counter, or waiting for it.
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
  /// Pieces, and counters, of one move().
  static constexpr std::size_t most_moved = 16;

  virtual ~PeerAccess() = default;
  /// Enqueued: the counter becomes `value` once all earlier work of the stream is done and visible to whoever
  /// sees it. The counter lies in device memory of this rank or an opened one, or in pinned host memory.
  virtual void write(Stream& stream, std::uint32_t* counter, std::uint32_t value) = 0;
  /// Enqueued: later work of the stream starts once the counter has reached `value`, counted as a clock: up
  /// to 2^31 - 1 steps beyond it too. Keeps neither the host nor the device's processors busy.
  virtual void wait(Stream& stream, const std::uint32_t* counter, std::uint32_t value) = 0;
  /// The same for several, in order, as one piece of work: each by itself takes a GPU a microsecond or two.
  virtual void steps(Stream& stream, std::span<const CounterStep> steps) = 0;
  /// Enqueued: `first`, if any, is written when the stream comes here, the pieces are copied, to memory of
  /// this rank or opened, and then the counters of `then` are written, once all pieces are visible to whoever
  /// sees them. None of these steps waits. For a few small pieces: one kernel, where copy engines and
  /// counters by themselves take a GPU several microseconds to begin with. `ticket` is a word of this rank's
  /// device memory, zero at first, that no other stream uses.
  virtual void move(Stream& stream, const std::optional<CounterStep>& first, std::span<const Piece> pieces,
                    std::span<const CounterStep> then, std::uint32_t* ticket) = 0;
  /// Enqueued, for tests: later work of the stream starts that much later.
  virtual void delay(Stream& stream, std::chrono::microseconds time) = 0;
  /// Enqueued, for tests: work that fails, so that all later work of the device does.
  virtual void fault(Stream& stream) = 0;

  /// By which another rank of this host opens the memory at `address`, which lies in a reservation.
  virtual std::string handle(void* address) = 0;
  /// The same memory, as this rank reaches it. Stays open until close() or the end of this object. Throws
  /// Error.
  virtual void* open(const std::string& handle) = 0;
  /// Ends what open() began; `opened` is what it gave.
  virtual void close(void* opened) = 0;
};

/// For ranks that are threads of this process. `alive` is called now and then by streams that wait; what it
/// throws, they throw.
std::unique_ptr<PeerAccess> make_memory_peer_access(std::function<void()> alive);

/// For GPUs of one host (CUDA's interprocess memory, and its stream memory operations). `device` outlives it.
std::unique_ptr<PeerAccess> make_cuda_peer_access(Device& device);

}  // namespace octet::comm
