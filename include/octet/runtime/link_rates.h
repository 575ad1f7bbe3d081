// How fast every two ranks send each other bytes.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"

namespace octet::runtime {

/// Pairs of `ranks` ranks in rounds, every pair once: as a round-robin tournament (the circle method), so
/// that no rank is in two pairs of a round. With `alone`, every round has one pair.
std::vector<std::vector<std::pair<int, int>>> rounds_of_pairs(int ranks, bool alone);

/// Bytes a second that each rank of the group sends every other one, [size * size] by sender and receiver, 0
/// for itself: of messages of `bytes`, both ways at once, the best of `tries` after one that does not count.
/// Pairs send one after the other, so that none shares a link with others, where the ranks are few; else as
/// many side by side as there can be. All ranks call it, between steps, and get the same; reserves twice
/// `bytes` on the device meanwhile.
std::vector<double> pair_rates(comm::Collectives& collectives, Device& device, std::size_t bytes, int tries);

}  // namespace octet::runtime
