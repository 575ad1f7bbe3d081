// Exchange of bytes between devices: the only interface in which the carriers differ (over memory, by copies
// into peer memory, through NCCL, through pinned host memory). Collectives are composed of exchanges and
// kernels for all carriers, so no bit depends on the carrier.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "gpu/peer_access.h"
#include "octet/device/device.h"

namespace octet::comm {

/// Bytes sent to a member of the group.
struct Outgoing {
  int peer = 0;                ///< number in the group
  const void* from = nullptr;  ///< device memory
  /// Address in this rank's own memory that corresponds to the destination in the peer. Carriers that write
  /// into peer memory need it, and it must be in memory that all members shared alike. Other carriers ignore
  /// it.
  void* twin = nullptr;
  std::size_t bytes = 0;
};

/// Bytes received from a member of the group.
struct Incoming {
  int peer = 0;
  void* to = nullptr;  ///< device memory
  std::size_t bytes = 0;
};

/// The messages of one exchange.
struct PeerMessages {
  std::vector<Outgoing> out;
  std::vector<Incoming> in;
};

/// Counters that report the progress of a stream. Carriers that already write counters write them too,
/// because each separate write costs a GPU 1 to 2 microseconds.
struct Marks {
  std::optional<CounterStep> before;  ///< written when the stream reaches the exchange
  std::optional<CounterStep> after;   ///< written when all bytes have arrived
};

/// An exchange of byte slices among the members of a group. Each queue (gather, reduce) has one object. Its
/// exchanges are enqueued in the same order on all members and never match exchanges of other queues.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Enqueues on `stream` the messages between this rank and its peers: at most one to each peer and one from
  /// each. If one side sends, the other receives in the same exchange, with equal sizes. Work enqueued
  /// afterwards finds all incoming bytes and may overwrite all outgoing bytes. Blocks only the stream.
  virtual void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) = 0;
  /// Like exchange(), but also writes marks. Only if takes_marks().
  virtual bool takes_marks() const { return false; }
  virtual void exchange_marked(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in,
                               const Marks&) {
    exchange(stream, out, in);
  }

  /// If in_steps(), an exchange can be enqueued in three steps on streams of the caller's choice, so sending
  /// and receiving need not wait for each other. Every exchange of a queue, in steps or not, has the same
  /// number on all members.
  virtual bool in_steps() const { return false; }
  /// Enqueues the permission for peers to write the incoming bytes.
  virtual void offer(Stream&, std::span<const Incoming>) {}
  /// Enqueues the sending after the peers have offered. Work enqueued afterwards may overwrite the outgoing
  /// bytes.
  virtual void send(Stream&, std::span<const Outgoing>) {}
  /// Work enqueued afterwards finds the incoming bytes.
  virtual void await(Stream&, std::span<const Incoming>) {}
  /// Returns the largest message in bytes that the carrier sends eagerly; 0: it sends none. An eager exchange
  /// needs no offer, because each member has separate space for the bytes of every other member. It sends to
  /// and receives from all members, with equal sizes and in the same order on all members.
  virtual std::size_t eager_room() const { return 0; }
  /// Sends out[i].bytes from out[i].from to out[i].peer, with one entry for each other member, and waits for
  /// the bytes of all members. Work enqueued afterwards may overwrite the sent bytes.
  virtual void send_eagerly(Stream&, std::span<const Outgoing>, const Marks&) {}
  /// Returns the address of the latest eager bytes of a member. Valid for work enqueued on the same stream
  /// before the next exchange.
  virtual const std::byte* came_eagerly(int /*member*/) const { return nullptr; }
  /// Copies eager bytes to their destinations, then writes a mark that they have arrived.
  virtual void take_eagerly(Stream&, std::span<const Piece>, const std::optional<CounterStep>& /*after*/) {}

  /// Returns true if the carrier can write the corresponding bytes of every peer, or does not need to.
  virtual bool reaches(const void* twin, std::size_t bytes) const = 0;

  /// Returns true if the carrier can also sum f32 and bf16, in an unspecified order. Sums and exchanges are
  /// enqueued in the same order on all members.
  virtual bool sums() const { return false; }
  /// values [members * count]: this member's slice becomes the sum of that slice over all members. The other
  /// slices are unspecified afterwards. bf16 is rounded to bf16 after each addition.
  virtual void sum(Stream&, void*, std::int64_t, DType) {}
};

}  // namespace octet::comm
