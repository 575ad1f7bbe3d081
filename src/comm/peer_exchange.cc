#include "peer_exchange.h"

#include <algorithm>
#include <utility>

#include "octet/base/error.h"

namespace octet::comm {
namespace {

std::size_t index(int i) {
  return static_cast<std::size_t>(i);
}

}  // namespace

void SharedRegions::add(void* local, std::size_t bytes, std::vector<void*> at_member) {
  regions_.push_back({static_cast<std::byte*>(local), bytes, std::move(at_member)});
}

std::vector<void*> SharedRegions::remove(const void* local) {
  const auto found = std::ranges::find(regions_, local, [](const Region& r) -> const void* { return r.local; });
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
                           int size, PeerCounters counters)
    : device_(device),
      access_(access),
      regions_(regions),
      member_(member),
      size_(size),
      counters_(std::move(counters)),
      sent_(index(size)),
      received_(index(size)) {}

// Three rounds: tell those who will write here that the memory may be written, which the order of the stream
// makes true, and wait until all who are written to have said so; write to each peer, beginning with the next
// one; tell them, and wait for all bytes of one's own.
void PeerExchange::exchange(Stream& stream, std::span<const Outgoing> out, std::span<const Incoming> in) {
  const auto ready = [](std::uint32_t* of, int peer) { return of + peer; };
  const auto arrived = [this](std::uint32_t* of, int peer) { return of + size_ + peer; };
  const auto any = [](const auto& pieces, int peer) {
    return std::ranges::any_of(pieces, [&](const auto& p) { return p.peer == peer && p.bytes > 0; });
  };
  std::vector<int> to, from;
  for (int d = 1; d < size_; ++d) {
    if (const int peer = (member_ + d) % size_; any(out, peer)) to.push_back(peer);
    if (const int peer = (member_ - d + size_) % size_; any(in, peer)) from.push_back(peer);
  }
  std::vector<CounterStep> steps;
  for (const int peer : from) {
    steps.push_back({ready(counters_.of_member[index(peer)], member_), ++received_[index(peer)]});
  }
  for (const int peer : to) steps.push_back({ready(counters_.own, peer), ++sent_[index(peer)], true});
  access_.steps(stream, steps);
  for (const int peer : to) {
    for (const Outgoing& piece : out) {
      if (piece.peer != peer || piece.bytes == 0) continue;
      void* there = regions_.at(peer, piece.twin, piece.bytes);
      check(there != nullptr, "bytes go to memory that was shared");
      device_.copy(stream, there, piece.from, piece.bytes);
    }
  }
  steps.clear();
  for (const int peer : to) {
    steps.push_back({arrived(counters_.of_member[index(peer)], member_), sent_[index(peer)]});
  }
  for (const int peer : from) steps.push_back({arrived(counters_.own, peer), received_[index(peer)], true});
  access_.steps(stream, steps);
}

}  // namespace octet::comm
