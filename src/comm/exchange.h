// What carries bytes between devices: the one thing in which the carriers (over memory, by copies into a
// peer's memory, through NCCL, through pinned host memory) differ. Collectives are composed of exchanges and
// kernels, once for all of them, so that no bit depends on who carries the bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "octet/device/device.h"
#include "peer_access.h"

namespace octet::comm {

/// Bytes that leave for a member of the group.
struct Outgoing {
  int peer = 0;                ///< number in the group
  const void* from = nullptr;  ///< device memory
  /// Where they arrive: the place in this rank's own memory that corresponds to it. Carriers that write into
  /// the peer's memory need it, and that it lies in memory that all members have shared alike; others do not
  /// look at it.
  void* twin = nullptr;
  std::size_t bytes = 0;
};

/// Bytes that arrive from a member of the group.
struct Incoming {
  int peer = 0;
  void* to = nullptr;  ///< device memory
  std::size_t bytes = 0;
};

/// Counters that tell how far a stream has come, written on the way by carriers that write counters anyway:
/// apart, each write would take a GPU a microsecond or two.
struct Marks {
  std::optional<CounterStep> before;  ///< when the stream reaches the exchange
  std::optional<CounterStep> after;   ///< when all bytes have come
};

/// An exchange of byte slices among the members of a group. One object for each queue (gather, reduce): its
/// exchanges are enqueued in the same order on all members, and those of other queues never meet them.
class Exchange {
 public:
  virtual ~Exchange() = default;
  /// Enqueues on `stream`: the messages between this rank and its peers, at most one to each and one from
  /// each; what one side sends, the other receives in the same exchange, and the sizes agree. Work enqueued
  /// after it finds all incoming bytes, and may write over all outgoing ones. Blocks nobody but the stream.
  virtual void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) = 0;
  /// The same, for carriers that say so: with marks.
  virtual bool takes_marks() const { return false; }
  virtual void exchange_marked(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in,
                               const Marks&) {
    exchange(stream, out, in);
  }

  /// Carriers that say so: an exchange in three steps, on streams of the caller's choice, so that one's
  /// sending and another's arriving need not wait for each other. Every exchange of a queue, in steps or not,
  /// has the same number on all members.
  virtual bool in_steps() const { return false; }
  /// Later work of the peers may write the incoming bytes.
  virtual void offer(Stream&, std::span<const Incoming>) {}
  /// Sends, once the peers have offered. Work enqueued after it may write over the outgoing bytes.
  virtual void send(Stream&, std::span<const Outgoing>) {}
  /// Work enqueued after it finds the incoming bytes.
  virtual void await(Stream&, std::span<const Incoming>) {}
  /// Carriers that say so send small messages eagerly, to all other members at once: they ask nobody before,
  /// since what a member sends has a place of its own at each other one, of so many bytes; 0: they do not.
  /// Every such exchange goes to and comes from all members, of the same sizes, in the same order on all.
  virtual std::size_t eager_room() const { return 0; }
  /// Sends out[i].bytes from out[i].from to out[i].peer, one for each other member, and waits for theirs.
  /// Work enqueued after it may write over what was sent.
  virtual void send_eagerly(Stream&, std::span<const Outgoing>, const Marks&) {}
  /// Where the latest bytes of a member lie, for work enqueued on the same stream before the next exchange.
  virtual const std::byte* came_eagerly(int /*member*/) const { return nullptr; }
  /// Copies them to where they belong, and writes a mark that says that they have come.
  virtual void take_eagerly(Stream&, std::span<const Piece>, const std::optional<CounterStep>& /*after*/) {}

  /// True where the carrier can write the corresponding bytes of every peer, or needs no such thing.
  virtual bool reaches(const void* twin, std::size_t bytes) const = 0;

  /// Carriers that say so can sum f32 and bf16 as well, in an order of their own. One sum follows the other,
  /// and the exchanges, alike on all members.
  virtual bool sums() const { return false; }
  /// values [members * count]: this member's slice becomes the sum of all members' of it; what becomes of the
  /// others nobody may ask. bf16 is rounded to bf16 after each addition.
  virtual void sum(Stream&, void*, std::int64_t, DType) {}
};

}  // namespace octet::comm
