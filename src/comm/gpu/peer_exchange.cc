#include "gpu/peer_exchange.h"

#include <algorithm>
#include <array>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/index.h"

namespace octet::comm {
namespace {

/// Array of at most as many elements as move() takes, plus one mark.
template <typename T>
class Few {
 public:
  void add(const T& item) { items_[count_++] = item; }
  std::span<const T> all() const { return {items_.data(), count_}; }

 private:
  std::array<T, PeerAccess::most_moved + 1> items_;
  std::size_t count_ = 0;
};

}  // namespace

void SharedRegions::add(void* local, std::size_t bytes, std::vector<void*> at_member) {
  regions_.push_back({static_cast<std::byte*>(local), bytes, std::move(at_member)});
}

std::vector<void*> SharedRegions::remove(const void* local) {
  const auto found =
      std::ranges::find(regions_, local, [](const Region& r) -> const void* { return r.local; });
  if (found == regions_.end()) return {};
  std::vector<void*> at_member = std::move(found->at_member);
  regions_.erase(found);
  return at_member;
}

const SharedRegions::Region* SharedRegions::find(const void* twin, std::size_t bytes) const {
  const auto* at = static_cast<const std::byte*>(twin);
  for (const Region& region : regions_) {
    if (at >= region.local && at + bytes <= region.local + region.bytes) return &region;
  }
  return nullptr;
}

void* SharedRegions::at(int member, const void* twin, std::size_t bytes) const {
  const Region* region = find(twin, bytes);
  if (region == nullptr) return nullptr;
  const auto offset = static_cast<const std::byte*>(twin) - region->local;
  return static_cast<std::byte*>(region->at_member[index(member)]) + offset;
}

PeerExchange::PeerExchange(Device& device, PeerAccess& access, const SharedRegions& regions, int member,
                           int size, PeerCounters counters, EagerPlaces eager)
    : device_(device),
      access_(access),
      regions_(regions),
      member_(member),
      size_(size),
      counters_(std::move(counters)),
      eager_(std::move(eager)),
      offered_(index(size)),
      sent_(index(size)),
      awaited_(index(size)) {}

// Returns the writers to this rank, starting with the previous rank. Then the ranks that this rank writes to,
// starting with the next rank.
std::vector<int> PeerExchange::sources(std::span<const Incoming> in) const {
  std::vector<int> found;
  for (int d = 1; d < size_; ++d) {
    const int peer = (member_ - d + size_) % size_;
    if (std::ranges::any_of(in, [&](const Incoming& p) { return p.peer == peer && p.bytes > 0; })) {
      found.push_back(peer);
    }
  }
  return found;
}

std::vector<int> PeerExchange::targets(std::span<const Outgoing> out) const {
  std::vector<int> found;
  for (int d = 1; d < size_; ++d) {
    const int peer = (member_ + d) % size_;
    if (std::ranges::any_of(out, [&](const Outgoing& p) { return p.peer == peer && p.bytes > 0; })) {
      found.push_back(peer);
    }
  }
  return found;
}

void PeerExchange::say_ready(std::vector<CounterStep>& batch, const std::vector<int>& sources) {
  for (const int peer : sources) {
    batch.push_back({counters_.of_member[index(peer)] + member_, ++offered_[index(peer)]});
  }
}

void PeerExchange::wait_ready(std::vector<CounterStep>& batch, const std::vector<int>& targets) {
  for (const int peer : targets) batch.push_back({counters_.own + peer, ++sent_[index(peer)], true});
}

void PeerExchange::say_arrived(std::vector<CounterStep>& batch, const std::vector<int>& targets) const {
  for (const int peer : targets) {
    batch.push_back({counters_.of_member[index(peer)] + size_ + member_, sent_[index(peer)]});
  }
}

void PeerExchange::wait_arrived(std::vector<CounterStep>& batch, const std::vector<int>& sources) {
  for (const int peer : sources) {
    batch.push_back({counters_.own + size_ + peer, ++awaited_[index(peer)], true});
  }
}

void PeerExchange::copy(Stream& stream, std::span<const Outgoing> out, const std::vector<int>& targets) {
  for (const int peer : targets) {
    for (const Outgoing& piece : out) {
      if (piece.peer != peer || piece.bytes == 0) continue;
      void* there = regions_.at(peer, piece.twin, piece.bytes);
      check(there != nullptr, "bytes go to memory that was shared");
      device_.copy(stream, there, piece.from, piece.bytes);
    }
  }
}

// Works in three rounds. First, tell the writers that the memory may be written, which stream order
// guarantees, and wait for the same message from all targets. Second, write to each peer, starting with the
// next rank. Third, notify the targets and wait for all incoming bytes. The first mark is written while the
// messages of the first round are in flight.
void PeerExchange::exchange_marked(Stream& stream, std::span<const Outgoing> out,
                                   std::span<const Incoming> in, const Marks& marks) {
  const std::vector<int> from = sources(in), to = targets(out);
  std::vector<CounterStep> batch;
  say_ready(batch, from);
  if (marks.before) batch.push_back(*marks.before);
  wait_ready(batch, to);
  access_.steps(stream, batch);
  copy(stream, out, to);
  batch.clear();
  say_arrived(batch, to);
  wait_arrived(batch, from);
  if (marks.after) batch.push_back(*marks.after);
  access_.steps(stream, batch);
}

// Needs no permission. A member writes to the set of this exchange after it has seen this rank's message of
// the previous exchange. That message was sent after the earlier content of the set had been read.
void PeerExchange::send_eagerly(Stream& stream, std::span<const Outgoing> out, const Marks& marks) {
  check(static_cast<int>(out.size()) == size_ - 1, "eager messages go to all other members");
  ++eager_sent_;
  const std::ptrdiff_t place = came_eagerly(member_) - eager_.own;  // of this rank, in every member's memory
  // Avoids heap allocation: host work is most of the cost of a small message.
  Few<Piece> pieces;
  Few<CounterStep> said, arrive;
  for (const Outgoing& message : out) {
    check(message.bytes <= eager_.room, "an eager message fits its slot");
    if (message.bytes > 0) {
      pieces.add({message.from, eager_.of_member[index(message.peer)] + place, message.bytes});
    }
    said.add({counters_.of_member[index(message.peer)] + 2 * size_ + member_, eager_sent_});
    arrive.add({counters_.own + 2 * size_ + message.peer, eager_sent_, true});
  }
  access_.move(stream, marks.before, pieces.all(), said.all(), ticket());
  if (marks.after) arrive.add(*marks.after);
  access_.steps(stream, arrive.all());
}

const std::byte* PeerExchange::came_eagerly(int member) const {
  return eager_.own + (index(size_) * (eager_sent_ % 2) + index(member)) * eager_.room;
}

void PeerExchange::take_eagerly(Stream& stream, std::span<const Piece> pieces,
                                const std::optional<CounterStep>& after) {
  access_.move(stream, after, pieces, {}, ticket());
}

void PeerExchange::offer(Stream& stream, std::span<const Incoming> in) {
  std::vector<CounterStep> batch;
  say_ready(batch, sources(in));
  access_.steps(stream, batch);
}

void PeerExchange::send(Stream& stream, std::span<const Outgoing> out) {
  const std::vector<int> to = targets(out);
  std::vector<CounterStep> batch;
  wait_ready(batch, to);
  access_.steps(stream, batch);
  copy(stream, out, to);
  batch.clear();
  say_arrived(batch, to);
  access_.steps(stream, batch);
}

void PeerExchange::await(Stream& stream, std::span<const Incoming> in) {
  std::vector<CounterStep> batch;
  wait_arrived(batch, sources(in));
  access_.steps(stream, batch);
}

}  // namespace octet::comm
