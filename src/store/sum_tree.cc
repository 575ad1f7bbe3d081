#include "sum_tree.h"

#include <algorithm>
#include <cstdint>

#include "octet/base/error.h"

namespace octet::store {
namespace {

/// A node, as its range of leaves.
struct Node {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

/// A stack of sums over adjacent ranges, from left to right.
class Stack {
 public:
  explicit Stack(std::int64_t leaves) : leaves_(leaves) {}

  /// Pushes a node and merges as the tree requires. Returns the number of merges.
  int push(const Node& node) {
    nodes_.push_back(node);
    int merges = 0;
    for (; nodes_.size() > 1 && are_halves(nodes_[nodes_.size() - 2], nodes_.back()); ++merges) {
      nodes_[nodes_.size() - 2].end = nodes_.back().end;
      nodes_.pop_back();
    }
    return merges;
  }
  const std::vector<Node>& nodes() const { return nodes_; }

 private:
  /// A left half is always full: it begins at a multiple of twice its length, a power of two.
  bool are_halves(const Node& left, const Node& right) const {
    const std::int64_t length = left.end - left.begin;
    return (length & (length - 1)) == 0 && left.begin % (2 * length) == 0 &&
           right.end == std::min(left.begin + 2 * length, leaves_);
  }

  std::int64_t leaves_;
  std::vector<Node> nodes_;
};

}  // namespace

SumTree sum_tree(const comm::Place& place, int micro_batches) {
  check(place.size >= 1 && micro_batches >= 1, "a tree of sums has leaves");
  const std::int64_t each = micro_batches;
  SumTree tree;
  Stack across(each * place.size);
  for (int rank = 0; rank < place.size; ++rank) {
    Stack own(each * place.size);
    for (std::int64_t i = 0; i < each; ++i) {
      const std::int64_t leaf = rank * each + i;
      const int merges = own.push({leaf, leaf + 1});
      if (rank == place.rank) tree.merges.push_back(merges);
      if (i + 1 < each) tree.buffers = std::max(tree.buffers, static_cast<int>(own.nodes().size()));
    }
    tree.order.parts.push_back(static_cast<int>(own.nodes().size()));
    for (const Node& node : own.nodes()) tree.order.merges.push_back(across.push(node));
  }
  check(across.nodes().size() == 1, "a tree has one root");
  return tree;
}

comm::SumOrder joined(const comm::SumOrder& order, int ranks) {
  comm::SumOrder groups{.parts = {}, .merges = order.merges};
  for (std::size_t rank = 0; rank < order.parts.size(); ++rank) {
    if (rank % static_cast<std::size_t>(ranks) == 0) groups.parts.push_back(0);
    groups.parts.back() += order.parts[rank];
  }
  return groups;
}

}  // namespace octet::store
