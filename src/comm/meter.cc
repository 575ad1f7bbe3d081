#include "meter.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/index.h"
#include "octet/comm/collectives.h"
#include "octet/device/cpu.h"

namespace octet::comm {

void Meter::under_way(int change) {
  const std::scoped_lock lock(mutex_);
  const bool before = under_way_ > 0;
  under_way_ += change;
  if (before == (under_way_ > 0)) return;
  const auto now = Clock::now();
  if (before) seconds_busy_ += std::chrono::duration<double>(now - busy_since_).count();
  busy_since_ = now;
}

double Meter::seconds_busy() const {
  const std::scoped_lock lock(mutex_);
  if (under_way_ == 0) return seconds_busy_;
  return seconds_busy_ + seconds_since(busy_since_);
}

void Meter::count(Kind kind, const Traffic& traffic) {
  const std::scoped_lock lock(mutex_);
  Traffic& sum = traffic_[kind];
  sum.calls += traffic.calls;
  sum.bytes_sent += traffic.bytes_sent;
  sum.bytes_between_nodes += traffic.bytes_between_nodes;
  sum.seconds += traffic.seconds;
}

std::vector<Traffic> Meter::take() {
  const std::scoped_lock lock(mutex_);
  std::vector<Traffic> taken;
  for (auto& [kind, traffic] : std::exchange(traffic_, {})) {
    traffic.kind = name_of(kind);
    taken.push_back(traffic);
  }
  return taken;
}

// Computes the bytes that a rank sends without building message lists, because plans may cover too many ranks
// for lists.

namespace {

int ranks_of_node(const Place& place) {
  return static_cast<int>(std::ranges::count(place.node_of, place.node_of[index(place.rank)]));
}

/// Returns the number of slices that this rank is its node's delegate for, including its own
/// (Hierarchy::delegate: other nodes' slices in turn, in the order of the concatenated lists).
std::int64_t charges_of(const Place& place) {
  std::vector<int> next(index(place.nodes) + 1, 0);
  for (const int node : place.node_of) ++next[index(node) + 1];
  const int node = place.node_of[index(place.rank)], local = next[index(node) + 1];
  for (std::size_t n = 1; n < next.size(); ++n) next[n] += next[n - 1];
  const auto mine = std::count(place.node_of.begin(), place.node_of.begin() + place.rank, node);
  std::int64_t charges = 1;
  for (const int of : place.node_of) {
    const int turn = next[index(of)]++;
    if (of != node && turn % local == mine) ++charges;
  }
  return charges;
}

/// Sends a slice of `bytes` to every other rank.
Sent to_all_others(const Place& place, std::int64_t bytes) {
  const std::int64_t local = ranks_of_node(place);
  Sent sent = Sent{bytes, 0} * (local - 1);
  return sent += Sent{bytes, bytes} * (place.size - local);
}

}  // namespace

Sent sent_by_gather(const Place& place, std::int64_t slice, bool hierarchical) {
  if (!hierarchical) return to_all_others(place, slice);
  // Sends the own slice once to every other node. Sends all slices of this delegate to the other ranks of the
  // node.
  Sent sent = Sent{slice, slice} * (place.nodes - 1);
  return sent += Sent{slice, 0} * ((ranks_of_node(place) - 1) * charges_of(place));
}

Sent sent_by_reduction(const Place& place, std::int64_t wire, std::int64_t inside, bool hierarchical) {
  if (!hierarchical) return to_all_others(place, wire);
  // For every slice, one rank of the node sums it and, if the owner is on another node, sends the sum there.
  const std::int64_t charges = charges_of(place);
  Sent sent = Sent{inside, 0} * (place.size - charges);
  return sent += Sent{wire, wire} * (charges - 1);
}

bool overlap_hides(const Device& device, const Place& place) {
  const char* told = environment_variable("OCTETRUN_OVERLAP");
  if (told != nullptr && std::string_view(told) == "always") return true;
  if (device.kind() != DeviceKind::cpu || place.nodes > 1) return true;
  return cpu::op_threads() > 1 || cpu::allowed_cores() > place.local_size;
}

}  // namespace octet::comm
