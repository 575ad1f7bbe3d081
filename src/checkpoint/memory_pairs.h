// Which host keeps a copy of which.
#pragma once

#include <vector>

#include "octet/comm/channel.h"

namespace octet::checkpoint {

/// Two hosts that exchange at the same time as others do.
struct HostPair {
  int first = 0, second = 0;
  bool both = true;  ///< each keeps a copy of the other; else the second keeps one of the first
};

/// Rounds of exchanges between `hosts` hosts, after which each is kept by one other. In a round each host is
/// in one pair at most. Hosts go in pairs, the last three of an odd number in a ring; one host: no rounds.
std::vector<std::vector<HostPair>> pair_hosts(int hosts);

/// Whether a host hands its parts on in a round.
bool sends_in(const std::vector<HostPair>& round, int node);

/// The ranks of a pair that exchange with one another: those with this rank's number on its host, modulo the
/// fewer ranks of the two. Ascending; this rank alone where its host is in no pair.
std::vector<int> exchange_group(const comm::Place& place, const std::vector<HostPair>& round);

/// Ranks of other hosts that this one keeps copies of.
std::vector<int> copied_by(const comm::Place& place);

}  // namespace octet::checkpoint
