// Assignment of hosts to the hosts that keep copies of their parts.
#pragma once

#include <vector>

#include "octet/comm/channel.h"

namespace octet::memory_tier {

/// A pair of hosts that exchanges concurrently with the other pairs of a round.
struct HostPair {
  int first = 0, second = 0;
  bool both = true;  ///< each keeps a copy of the other; false: only the second keeps a copy of the first
};

/// Returns rounds of exchanges, after which each host has its copy on another host. A host is in at most one
/// pair per round. Hosts are paired; with an odd number, the last three form a ring. One host: no rounds.
std::vector<std::vector<HostPair>> pair_hosts(int hosts);

/// Returns whether a host sends its parts in a round.
bool sends_in(const std::vector<HostPair>& round, int node);

/// Returns the ranks of a pair that exchange with this rank, ascending. They have the same index on their
/// host as this rank, modulo the smaller number of ranks per host. Returns only this rank if its host is in
/// no pair.
std::vector<int> exchange_group(const comm::Place& place, const std::vector<HostPair>& round);

/// Returns the ranks of other hosts for which this host keeps copies.
std::vector<int> copied_by(const comm::Place& place);

}  // namespace octet::memory_tier
