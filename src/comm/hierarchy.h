// Which ranks share a node, and who of them talks to other nodes. Sums by nodes are made inside a node in
// full precision and cross between nodes once, in the format of the wire; slices of a gather cross once a
// node and are handed on there.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/ops/wire.h"

namespace octet::comm {

/// Bytes that a block of the widest encoded format takes.
inline constexpr std::size_t encoded_bytes_of_block = 2 * ops::kWireBlock;

/// Who stands where. Node n's delegate for rank t is the rank of n that adds up n's values of t's slice, and
/// that hands t's slice on to its node: on t's own node t itself, elsewhere ranks by turns.
struct Hierarchy {
  explicit Hierarchy(const Place& place);
  int size() const { return static_cast<int>(node_of.size()); }
  /// More than one node, and more than one rank on some: there is something to gain.
  bool several() const { return nodes.size() > 1 && nodes.size() < node_of.size(); }
  const std::vector<int>& mates(int rank) const {
    return nodes[static_cast<std::size_t>(node_of[static_cast<std::size_t>(rank)])];
  }
  int delegate(int node, int target) const;
  /// Ranks for whose slices `rank` is its node's delegate, in order; it is among them.
  const std::vector<int>& charges(int rank) const { return charges_of[static_cast<std::size_t>(rank)]; }

  std::vector<int> node_of;             ///< by rank
  std::vector<std::vector<int>> nodes;  ///< their ranks, ascending
  std::vector<int> turn;                ///< by rank: its place in the list of nodes one behind the other
  std::vector<std::vector<int>> charges_of;
  std::int64_t worst_bytes = 0;  ///< of staging for one element of a chunk, on the rank that needs most
};

/// All ranks of one node, whatever they are: the plain form of a gather.
Hierarchy one_node(const Place& place);

}  // namespace octet::comm
