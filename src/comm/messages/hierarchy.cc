#include "messages/hierarchy.h"

#include <algorithm>

#include "octet/base/index.h"

namespace octet::comm {
Hierarchy::Hierarchy(const Place& place) : node_of(place.node_of), turn(place.node_of.size()) {
  nodes.resize(index(place.nodes));
  for (int rank = 0; rank < size(); ++rank) nodes[index(node_of[index(rank)])].push_back(rank);
  int next = 0;
  for (const auto& ranks : nodes) {
    for (const int rank : ranks) turn[index(rank)] = next++;
  }
  charges_of.resize(node_of.size());
  for (int target = 0; target < size(); ++target) {
    for (int node = 0; node < static_cast<int>(nodes.size()); ++node) {
      charges_of[index(delegate(node, target))].push_back(target);
    }
  }
}

int Hierarchy::delegate(int node, int target) const {
  if (node_of[index(target)] == node) return target;
  const auto& ranks = nodes[index(node)];
  return ranks[index(turn[index(target)]) % ranks.size()];
}

Hierarchy one_node(const Place& place) {
  Place flat = place;
  flat.node_of.assign(index(place.size), 0);
  flat.nodes = 1;
  return Hierarchy(flat);
}

}  // namespace octet::comm
