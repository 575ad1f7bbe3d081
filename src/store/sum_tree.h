#pragma once

#include <vector>

#include "octet/comm/collectives.h"

namespace octet::store {

/// The fixed binary tree over the micro-batches of a step that strict determinism sums gradients in. Its
/// leaves are numbered over all ranks: rank r of accumulation A holds [r * A, (r + 1) * A). A node of level l
/// covers leaves [k * 2^l, (k + 1) * 2^l) as far as there are any, and is the sum of its two halves, or its
/// left half where the right one is empty. The tree depends on the number of leaves alone, so that the bits
/// of the sum do not depend on how many ranks share them.
struct SumTree {
  /// Per micro-batch of this rank: how often, after it, the two sums on top of the rank's stack are added.
  std::vector<int> merges;
  /// Sums that any rank's stack holds between micro-batches, at most: the same number on all ranks.
  int buffers = 0;
  /// How the tree goes on over what is left on the stacks of all ranks.
  comm::SumOrder order;
};
/// `micro_batches` of each rank, at least 1.
SumTree sum_tree(const comm::Place& place, int micro_batches);

}  // namespace octet::store
