// Ranks grouped by node, and the ranks that communicate with other nodes. Sums by node are computed inside a
// node in full precision and sent between nodes once, in the wire format. Slices of a gather are sent to each
// node once and forwarded there.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/ops/wire.h"

namespace octet::comm {

/// Bytes of a block in the widest encoded format.
inline constexpr std::size_t encoded_bytes_of_block = 2 * ops::kWireBlock;

/// Groups of ranks by node. The delegate of node n for rank t is the rank of n that sums n's values of t's
/// slice and forwards t's slice inside n. On t's node it is t; on other nodes the ranks take turns.
struct Hierarchy {
  explicit Hierarchy(const Place& place);
  int size() const { return static_cast<int>(node_of.size()); }
  /// True if there are several nodes and some node has several ranks, so that a sum by node saves traffic.
  bool several() const { return nodes.size() > 1 && nodes.size() < node_of.size(); }
  const std::vector<int>& node_ranks(int rank) const {
    return nodes[static_cast<std::size_t>(node_of[static_cast<std::size_t>(rank)])];
  }
  int delegate(int node, int target) const;
  /// Returns the ranks that `rank` is its node's delegate for, in order, including `rank`.
  const std::vector<int>& charges(int rank) const { return charges_of[static_cast<std::size_t>(rank)]; }

  std::vector<int> node_of;             ///< by rank
  std::vector<std::vector<int>> nodes;  ///< their ranks, ascending
  std::vector<int> turn;                ///< by rank: its index in the concatenated lists of nodes
  std::vector<std::vector<int>> charges_of;
};

/// Treats all ranks as one node: the plain form of a gather.
Hierarchy one_node(const Place& place);

}  // namespace octet::comm
