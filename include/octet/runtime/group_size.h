// The number of ranks in a sharding group: how a wish becomes a number.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/comm/channel.h"
#include "octet/store/placement.h"

namespace octet::runtime {

/// Values of InstanceOptions::group_size that are no number of ranks. kGroupOfAll: one group of all ranks.
/// kGroupOfNode: the ranks of a host. kAutomaticGroup: an instance takes the first of automatic_groups().
inline constexpr std::int64_t kGroupOfAll = 0, kGroupOfNode = -1, kAutomaticGroup = -2;

/// Returns the group sizes for kAutomaticGroup, ascending: the ranks of a host, then the ranks of several
/// hosts, at last all ranks. If hosts have different numbers of ranks, these are the divisors of the number
/// of ranks from 2 on. Sizes that `options` excludes are left out.
std::vector<std::int64_t> automatic_groups(const comm::Place& place, const store::Options& options);

/// Returns store::Options::group for the wish. Throws Error (usage) on all ranks if no such groups exist, or
/// if `options` excludes them.
int group_of(comm::Channel& job, std::int64_t wish, const store::Options& options);

}  // namespace octet::runtime
