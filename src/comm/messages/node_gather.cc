// All-gathers between many nodes: the slices of a node are one message.
#include <algorithm>
#include <deque>
#include <vector>

#include "messages/hierarchy.h"
#include "messages/transport_collectives.h"
#include "octet/base/index.h"

namespace octet::comm {
namespace {

// Largest message between nodes and inside a node. Longer slices are sent in pieces by other means, so that
// messages inside a node overlap with messages between nodes.
constexpr std::int64_t most_node_bytes = std::int64_t{1} << 24;

/// Consecutive nodes [first, last).
struct NodeRange {
  int first = 0;
  int last = 0;
};

// Node a and node b exchange their slices through one rank of each. A rank exchanges with a range of nodes
// and forwards their slices to the other ranks of its node.
class NodeGather {
 public:
  NodeGather(Call& call, const Hierarchy& hierarchy, const AllGatherArgs& args)
      : h_(hierarchy),
        args_(args),
        me_(call.place().rank),
        node_(h_.node_of[index(me_)]),
        node_ranks_(h_.node_ranks(me_)),
        inside_(call),
        forward_(call) {
    for (std::size_t i = 0; i < ranges_of(me_).size(); ++i) across_.emplace_back(call);
  }

  Messages& inside() { return inside_; }
  Messages& across(std::size_t range) { return across_[range]; }
  Messages& forward() { return forward_; }
  std::size_t ranges() const { return across_.size(); }

  void post_inside() {
    for_others([&](int peer) { inside_.receive(peer, slice(peer), index(args_.bytes)); });
    for_others([&](int peer) { inside_.send(peer, slice(me_), index(args_.bytes)); });
  }
  void post_across() {
    const std::vector<NodeRange> ranges = ranges_of(me_);
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      for (int node = ranges[i].first; node < ranges[i].last; ++node) {
        across_[i].receive(partner(node, node_), begin_of(node), bytes_of_nodes({node, node + 1}));
        across_[i].send(partner(node, node_), begin_of(node_), bytes_of_nodes({node_, node_ + 1}));
      }
    }
    for_others([&](int peer) {
      for (const NodeRange& range : ranges_of(peer))
        forward_.receive(peer, begin_of(range.first), bytes_of_nodes(range));
    });
  }
  void forward(std::size_t range) {
    const NodeRange nodes = ranges_of(me_)[range];
    for_others([&](int peer) { forward_.send(peer, begin_of(nodes.first), bytes_of_nodes(nodes)); });
  }

 private:
  std::byte* slice(int rank) const { return static_cast<std::byte*>(args_.buffer) + rank * args_.bytes; }
  std::byte* begin_of(int node) const { return slice(h_.nodes[index(node)].front()); }
  std::size_t bytes_of_nodes(const NodeRange& range) const {
    const int ranks = h_.nodes[index(range.last - 1)].back() + 1 - h_.nodes[index(range.first)].front();
    return index(ranks * args_.bytes);
  }
  /// Returns the rank of `node` that exchanges with `other`.
  int partner(int node, int other) const {
    const auto& ranks = h_.nodes[index(node)];
    return ranks[index(other) * ranks.size() / h_.nodes.size()];
  }
  /// Returns the other nodes that a rank of this node exchanges with, in ranges of at most most_node_bytes.
  std::vector<NodeRange> ranges_of(int rank) const {
    std::vector<NodeRange> ranges;
    for (int node = 0; node < static_cast<int>(h_.nodes.size()); ++node) {
      if (node == node_ || partner(node_, node) != rank) continue;
      const bool joins = !ranges.empty() && ranges.back().last == node &&
                         bytes_of_nodes({ranges.back().first, node + 1}) <= index(most_node_bytes);
      if (joins) {
        ++ranges.back().last;
      } else {
        ranges.push_back({node, node + 1});
      }
    }
    return ranges;
  }
  // Starts with the next rank, so the ranks do not all send to the same rank at once.
  template <typename Do>
  void for_others(Do&& act) const {
    const std::size_t mine = index(std::ranges::find(node_ranks_, me_) - node_ranks_.begin());
    for (std::size_t d = 1; d < node_ranks_.size(); ++d) act(node_ranks_[(mine + d) % node_ranks_.size()]);
  }

  const Hierarchy& h_;
  AllGatherArgs args_;
  int me_;
  int node_;
  const std::vector<int>& node_ranks_;
  Messages inside_;
  std::deque<Messages> across_;  // by range
  Messages forward_;
};

}  // namespace

bool gathers_whole_nodes(const Hierarchy& hierarchy, std::int64_t slice) {
  const std::size_t nodes = hierarchy.nodes.size();
  return hierarchy.several() && std::ranges::all_of(hierarchy.nodes, [&](const std::vector<int>& ranks) {
           const bool consecutive = ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
           // With few nodes some ranks would send to no other node.
           return consecutive && 2 * ranks.size() <= nodes &&
                  static_cast<std::int64_t>(ranks.size()) * slice <= most_node_bytes;
         });
}

Steps gather_whole_nodes_steps(Call& call, const Hierarchy& hierarchy, AllGatherArgs args) {
  NodeGather gather(call, hierarchy, args);
  gather.post_inside();
  while (!gather.inside().complete()) co_await pause;
  gather.post_across();
  for (std::size_t range = 0; range < gather.ranges(); ++range) {
    while (!gather.across(range).complete()) co_await pause;
    gather.forward(range);
  }
  while (!gather.forward().complete()) co_await pause;
}

}  // namespace octet::comm
