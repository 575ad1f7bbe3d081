// The carrier within a host. Copy engines write into peer memory, and streams wait for each other by counters
// in device memory. No processor of the device takes part. NCCL 2.28 does the same in its copy-engine
// collectives. Small messages are sent eagerly, because permission would take longer than the copy: one
// kernel writes them to reserved places in the memory of all peers.
#pragma once

#include <cstdint>
#include <vector>

#include "gpu/exchange.h"
#include "gpu/peer_access.h"

namespace octet::comm {

/// Memory that all members of a group allocate alike, with the addresses by which this rank reaches the other
/// members' memory.
class SharedRegions {
 public:
  /// `at_member`: by number in the group; the own entry is not read.
  void add(void* local, std::size_t bytes, std::vector<void*> at_member);
  /// Removes the memory that starts at `local` and returns its `at_member`; empty if it was not added.
  std::vector<void*> remove(const void* local);
  /// Returns the address in a member's memory that corresponds to `twin`; null if it is not shared.
  void* at(int member, const void* twin, std::size_t bytes) const;
  bool holds(const void* twin, std::size_t bytes) const { return find(twin, bytes) != nullptr; }

 private:
  struct Region {
    std::byte* local = nullptr;
    std::size_t bytes = 0;
    std::vector<void*> at_member;
  };
  const Region* find(const void* twin, std::size_t bytes) const;
  std::vector<Region> regions_;
};

/// Counters of one queue in the memory of every member: [3 * size + 1].
/// counters[p]: exchanges for which member p is ready to receive from this member.
/// counters[size + p]: exchanges for which the bytes of member p have arrived.
/// counters[2 * size + p]: eager messages of member p.
/// The last counter is the ticket of PeerAccess::move().
struct PeerCounters {
  std::uint32_t* own = nullptr;
  std::vector<std::uint32_t*> of_member;  ///< addresses in this rank
};
constexpr std::size_t peer_counter_count(int size) {
  return 3 * static_cast<std::size_t>(size) + 1;
}

/// Receive buffers of one queue's eager messages, in the memory of every member: two sets of one place per
/// member, used alternately.
struct EagerPlaces {
  std::size_t room = 0;  ///< bytes of a place; 0: no eager messages
  std::byte* own = nullptr;
  std::vector<std::byte*> of_member;  ///< addresses in this rank
};
constexpr std::size_t eager_bytes(int size, std::size_t room) {
  return 2 * static_cast<std::size_t>(size) * room;
}

class PeerExchange final : public Exchange {
 public:
  /// All arguments are used until the exchange ends; `regions` may grow.
  PeerExchange(Device& device, PeerAccess& access, const SharedRegions& regions, int member, int size,
               PeerCounters counters, EagerPlaces eager);
  void exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) override {
    exchange_marked(stream, out, in, {});
  }
  bool takes_marks() const override { return true; }
  void exchange_marked(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in,
                       const Marks& marks) override;
  bool in_steps() const override { return true; }
  void offer(Stream& stream, std::span<const Incoming> in) override;
  void send(Stream& stream, std::span<const Outgoing> out) override;
  void await(Stream& stream, std::span<const Incoming> in) override;
  bool reaches(const void* twin, std::size_t bytes) const override { return regions_.holds(twin, bytes); }
  std::size_t eager_room() const override { return eager_.room; }
  void send_eagerly(Stream& stream, std::span<const Outgoing> out, const Marks& marks) override;
  const std::byte* came_eagerly(int member) const override;
  void take_eagerly(Stream& stream, std::span<const Piece> pieces,
                    const std::optional<CounterStep>& after) override;

 private:
  std::uint32_t* ticket() const { return counters_.own + 3 * size_; }
  std::vector<int> sources(std::span<const Incoming> in) const;
  std::vector<int> targets(std::span<const Outgoing> out) const;
  // Steps by counters, added to a batch.
  void say_ready(std::vector<CounterStep>& batch, const std::vector<int>& sources);
  void wait_ready(std::vector<CounterStep>& batch, const std::vector<int>& targets);
  void say_arrived(std::vector<CounterStep>& batch, const std::vector<int>& targets) const;
  void wait_arrived(std::vector<CounterStep>& batch, const std::vector<int>& sources);
  void copy(Stream& stream, std::span<const Outgoing> out, const std::vector<int>& targets);

  Device& device_;
  PeerAccess& access_;
  const SharedRegions& regions_;
  int member_;
  int size_;
  PeerCounters counters_;
  EagerPlaces eager_;
  std::uint32_t eager_sent_ = 0;                         ///< exchanges so far
  std::vector<std::uint32_t> offered_, sent_, awaited_;  ///< by member: exchanges so far
};

}  // namespace octet::comm
