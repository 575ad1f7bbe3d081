#pragma once

#include <vector>

#include "octet/comm/collectives.h"

namespace octet::store {

/// The fixed binary tree in which gradients are summed over the micro-batches of a step, for strict
/// determinism. Leaves are numbered over all ranks: with A micro-batches per rank, rank r holds [r * A, (r +
/// 1) * A). A node of level l covers the existing leaves of [k * 2^l, (k + 1) * 2^l). It is the sum of its
/// two halves, or its left half if the right half is empty. The tree depends only on the number of leaves, so
/// the bits of the sum do not depend on the number of ranks.
struct SumTree {
  /// Per micro-batch of this rank: how often the two topmost sums of the rank's stack are added after it.
  std::vector<int> merges;
  /// Maximum number of sums on any rank's stack between micro-batches; equal on all ranks.
  int buffers = 0;
  /// How the tree continues over the sums left on the stacks of all ranks.
  comm::SumOrder order;
};
/// Returns the tree for `micro_batches` micro-batches per rank (at least 1).
SumTree sum_tree(const comm::Place& place, int micro_batches);

/// Returns the order for groups of `ranks` adjacent ranks, each with the addends of all its ranks.
comm::SumOrder joined(const comm::SumOrder& order, int ranks);

}  // namespace octet::store
