// The exchanges of the collectives of a queue: in chunks that overlap with kernels, whole, or eagerly. Writes
// the marks of a collective and counts the bytes that are sent.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "gpu/device_staging.h"
#include "gpu/exchange.h"
#include "octet/comm/collectives.h"
#include "octet/device/device.h"

namespace octet::comm {

/// Exchanges of one queue. A collective calls begin(), enqueues its exchanges and kernels, and calls end().
/// A second stream carries a chunk while the stream of the queue prepares and finishes other chunks. Not
/// thread-safe.
class ChunkPipeline {
 public:
  struct Chunk {
    std::int64_t number = 0;
    std::int64_t start = 0;
    std::int64_t count = 0;
  };
  using Act = std::function<void(const Chunk&)>;
  using MessagesOf = std::function<PeerMessages(const Chunk&)>;
  using Carry = std::function<void(Stream&, const Chunk&)>;

  /// All arguments except `place` must outlive this object. `stream` is the stream of the queue.
  ChunkPipeline(Device& device, Stream& stream, Exchange& exchange, PeerAccess& access, const Place& place);

  /// Begins a collective. `marks` report that the stream has reached the collective, and that it is done.
  void begin(const Marks& marks) { marks_ = marks; }
  /// Ends a collective: writes the marks that no exchange has written.
  void end();
  /// Writes the mark of the begin now, for a collective that this object does not carry.
  void begin_elsewhere();

  /// Divides `count` elements into chunks of `length`, and enqueues for each chunk: prepare (may be empty),
  /// an exchange of its messages, finish. A set of staging memory (DeviceStaging::set) is free for chunk
  /// `number` when its prepare is called, because the chunk `number - sets` is finished.
  void in_chunks(std::int64_t length, std::int64_t count, const Act& prepare, const MessagesOf& messages,
                 const Act& finish);
  /// Like in_chunks(), for chunks that need more than one exchange: `carry` enqueues them on the given
  /// stream.
  void in_chunks_carried(std::int64_t length, std::int64_t count, const Act& prepare, const Carry& carry,
                         const Act& finish);
  /// Enqueues one exchange. `last`: no later work belongs to the collective.
  void exchange(Stream& stream, const PeerMessages& messages, bool last = false);

  /// Returns true if the carrier sends messages of this size to every member eagerly.
  bool goes_eagerly(std::size_t bytes) const { return bytes <= exchange_.eager_room(); }
  /// Sends from(member) to every other member and waits for the bytes of all members. `marks_end`: also
  /// writes the end mark; otherwise take_eagerly() or end() writes it.
  void exchange_eagerly(std::size_t bytes, const std::function<const void*(int)>& from,
                        bool marks_end = true);
  /// Returns the address of the bytes of a member in the latest eager exchange.
  const std::byte* came_eagerly(int member) const { return exchange_.came_eagerly(member); }
  /// Copies eager bytes to their destinations, then writes the end mark.
  void take_eagerly(std::span<const Piece> pieces);

  /// Bytes that this rank has sent since the last call, in total and to other nodes.
  struct Sent {
    std::int64_t bytes = 0;
    std::int64_t between_nodes = 0;
  };
  Sent take_sent();
  /// Counts a slice of `bytes` to every other member, for bytes that this object does not carry.
  void count_slices(std::int64_t bytes);

 private:
  static std::int64_t chunks_of(std::int64_t length, std::int64_t count) {
    return (count + length - 1) / length;
  }
  static Chunk chunk_at(std::int64_t number, std::int64_t length, std::int64_t count);
  void count(std::span<const Outgoing> out);
  void write(std::optional<CounterStep>& mark);

  Stream& stream_;
  Exchange& exchange_;
  PeerAccess& access_;
  Place place_;
  Marks marks_;  ///< of the collective that is being enqueued, until they are written
  std::unique_ptr<Stream> beside_;
  std::array<std::unique_ptr<Event>, DeviceStaging::sets> prepared_, carried_;
  Sent sent_;
};

}  // namespace octet::comm
