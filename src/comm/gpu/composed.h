// Collectives composed of exchanges and kernels on streams, equal for every carrier. Values are encoded,
// bytes are exchanged, and the received values are summed in fp32 and in rank order. No bit of a result
// depends on the carrier. Messages between CPU ranks are summed by the same ops in the same order, so no bit
// depends on the device either.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "gpu/device_staging.h"
#include "gpu/exchange.h"
#include "messages/hierarchy.h"
#include "octet/comm/collectives.h"

namespace octet::comm {

/// The collectives of one queue. Work is enqueued on the queue's stream, and on a second stream that carries
/// chunks while others are encoded and summed. Not thread-safe.
class Composed {
 public:
  /// All arguments must outlive this object. `stream` is the stream of the queue.
  Composed(Device& device, Stream& stream, Exchange& exchange, PeerAccess& access, const Place& place,
           const Hierarchy& flat, const Hierarchy& hierarchy, const DeviceStaging& staging);

  /// Lets `summing` sum unconverted fp32 values, and bf16 values if `bf16`, in its own order. Sums by node
  /// and sums in a given order do not change. `summing` must outlive this object.
  void let_sum(Exchange& summing, bool bf16) { summing_ = &summing, sums_bf16_ = bf16; }

  /// Called around a collective. The marks report that the queue's stream has reached the collective, and
  /// that the collective is done.
  void begin(const Marks& marks) { marks_ = marks; }
  void end();

  void reduce_scatter(const ReduceScatterArgs& args);
  void all_gather(const AllGatherArgs& args);
  void all_gather_values(const AllGatherValuesArgs& args);
  void all_to_all(const AllToAllArgs& args);
  /// Sends a message to another member, receives one, or both; null: none.
  void pass(const SendArgs* out, const ReceiveArgs* in);
  void all_reduce(ops::Combine how, void* values, std::int64_t count);

  /// Bytes that this rank has sent since the last call, in total and to other nodes.
  struct Sent {
    std::int64_t bytes = 0;
    std::int64_t between_nodes = 0;
  };
  Sent take_sent();

 private:
  struct Chunk {
    std::int64_t number = 0;
    std::int64_t start = 0;
    std::int64_t count = 0;
  };
  using Messages = PeerMessages;
  using Act = std::function<void(const Chunk&)>;
  /// For every chunk: prepare (may be empty), an exchange of the messages, finish.
  void in_chunks(std::int64_t length, std::int64_t count, const Act& prepare,
                 const std::function<Messages(const Chunk&)>& messages, const Act& finish);
  /// Like in_chunks(), for chunks that need more than one exchange: `carry` enqueues them on the given
  /// stream.
  void in_chunks_carried(std::int64_t length, std::int64_t count, const Act& prepare,
                         const std::function<void(Stream&, const Chunk&)>& carry, const Act& finish);
  static std::int64_t chunks_of(std::int64_t length, std::int64_t count) {
    return (count + length - 1) / length;
  }
  static Chunk chunk_at(std::int64_t number, std::int64_t length, std::int64_t count);
  /// `last`: no later work belongs to the collective.
  void exchange(Stream& stream, const Messages& messages, bool last = false);
  void count(std::span<const Outgoing> out);
  void write(std::optional<CounterStep>& mark);
  std::int64_t chunk_of(Wire wire) const;

  void reduce_flat(ReduceScatterArgs args);
  const std::byte* leaves(const ReduceScatterArgs& args, const Chunk& c, std::size_t addend,
                          int member) const;
  static const std::byte* values_of(const ReduceScatterArgs& args, std::size_t addend, std::int64_t i);
  void encode(const ReduceScatterArgs& args, const Chunk& c);
  void sum(const ReduceScatterArgs& args, const Chunk& c,
           const std::function<const std::byte*(int)>& arrived);
  /// Returns true if the carrier sends messages of this size to every member eagerly.
  bool goes_eagerly(std::size_t bytes) const { return bytes <= exchange_.eager_room(); }
  /// Sends from(member) to every other member and waits for the bytes of all members. `marks_end`: also
  /// writes the end mark; otherwise the caller writes it.
  void exchange_eagerly(std::size_t bytes, const std::function<const void*(int)>& from,
                        bool marks_end = true);
  void reduce_eagerly(const ReduceScatterArgs& args);
  void gather_eagerly(const AllGatherArgs& args);
  void all_reduce_eagerly(ops::Combine how, void* values, std::int64_t count);
  bool carrier_sums(const ReduceScatterArgs& args) const;
  void reduce_by_carrier(const ReduceScatterArgs& args);
  void reduce_in_order(const ReduceScatterArgs& args);
  /// Sends every member's part to all members; part(member) is both source and destination. With several
  /// nodes, it takes two steps.
  void gather_parts(Stream& stream, const Hierarchy& ways, std::size_t bytes,
                    const std::function<std::byte*(int)>& part, bool last = false);
  void gather_through_staging(const AllGatherArgs& args, const Hierarchy& ways);

  Device& device_;
  Stream& stream_;
  Exchange& exchange_;
  Exchange* summing_ = nullptr;
  bool sums_bf16_ = false;
  PeerAccess& access_;
  Marks marks_;  ///< of the collective that is being enqueued, until they are written
  std::unique_ptr<Stream> beside_;
  Place place_;
  const Hierarchy& flat_;
  const Hierarchy& hierarchy_;
  DeviceStaging staging_;
  std::array<std::unique_ptr<Event>, DeviceStaging::sets> prepared_, carried_;
  Sent sent_;
};

}  // namespace octet::comm
