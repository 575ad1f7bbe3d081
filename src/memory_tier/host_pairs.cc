#include "host_pairs.h"

#include <algorithm>

namespace octet::memory_tier {
namespace {

std::vector<int> ranks_on(const comm::Place& place, int node) {
  std::vector<int> ranks;
  for (int rank = 0; rank < place.size; ++rank) {
    if (place.node_of[static_cast<std::size_t>(rank)] == node) ranks.push_back(rank);
  }
  return ranks;
}

const HostPair* pair_of(const std::vector<HostPair>& round, int node) {
  const auto found = std::ranges::find_if(
      round, [node](const HostPair& pair) { return pair.first == node || pair.second == node; });
  return found == round.end() ? nullptr : &*found;
}

}  // namespace

std::vector<std::vector<HostPair>> pair_hosts(int hosts) {
  if (hosts < 2) return {};
  std::vector<std::vector<HostPair>> rounds(1);
  const int in_pairs = hosts % 2 == 0 ? hosts : hosts - 3;
  for (int host = 0; host < in_pairs; host += 2) rounds[0].push_back({host, host + 1, true});
  if (in_pairs == hosts) return rounds;
  rounds.resize(3);
  for (int i = 0; i < 3; ++i)
    rounds[static_cast<std::size_t>(i)].push_back({in_pairs + i, in_pairs + (i + 1) % 3, false});
  return rounds;
}

bool sends_in(const std::vector<HostPair>& round, int node) {
  const HostPair* pair = pair_of(round, node);
  return pair != nullptr && (pair->both || pair->first == node);
}

std::vector<int> exchange_group(const comm::Place& place, const std::vector<HostPair>& round) {
  const HostPair* pair = pair_of(round, place.node);
  if (pair == nullptr) return {place.rank};
  const std::vector<int> first = ranks_on(place, pair->first), second = ranks_on(place, pair->second);
  const auto columns = static_cast<std::ptrdiff_t>(std::min(first.size(), second.size()));
  const std::vector<int>& own = pair->first == place.node ? first : second;
  const auto column = (std::ranges::find(own, place.rank) - own.begin()) % columns;
  std::vector<int> group;
  for (const std::vector<int>* ranks : {&first, &second}) {
    for (auto i = column; i < std::ssize(*ranks); i += columns)
      group.push_back((*ranks)[static_cast<std::size_t>(i)]);
  }
  std::ranges::sort(group);
  return group;
}

std::vector<int> copied_by(const comm::Place& place) {
  std::vector<int> ranks;
  for (const std::vector<HostPair>& round : pair_hosts(place.nodes)) {
    const HostPair* pair = pair_of(round, place.node);
    if (pair == nullptr || (!pair->both && pair->second != place.node)) continue;
    for (const int rank : ranks_on(place, pair->first == place.node ? pair->second : pair->first))
      ranks.push_back(rank);
  }
  return ranks;
}

}  // namespace octet::memory_tier
