// Reduce-scatters with full precision inside a node: the ranks of a node add their values first, and only
// node sums are sent between nodes.
#include <algorithm>
#include <array>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include "messages/hierarchy.h"
#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

/// How a sum by nodes is divided, equal on all ranks. A chunk is a part of every slice. In one step, the
/// ranks of a node exchange and add this part of `group` slices of each of them.
struct NodeSumsPlan {
  std::int64_t chunk = 0;  ///< elements of a slice
  std::int64_t chunks = 0;
  std::int64_t group = 0;  ///< slices of a rank in a message inside the node
  std::int64_t groups = 0;
};

NodeSumsPlan plan_of(std::size_t staging_bytes, const Hierarchy& hierarchy, std::int64_t count) {
  const auto bytes = static_cast<std::int64_t>(staging_bytes);
  const auto most = [](const auto& lists) {
    std::size_t longest = 0;
    for (const auto& list : lists) longest = std::max(longest, list.size());
    return static_cast<std::int64_t>(longest);
  };
  const std::int64_t others = most(hierarchy.nodes) - 1, charges = most(hierarchy.charges_of);
  // Bytes of an element of a chunk, in two sets: the parts of all nodes; for each slice of a group the values
  // that arrive and leave inside the node, the sum and the encoded sum.
  const auto nodes = static_cast<std::int64_t>(hierarchy.nodes.size()) * 2 * 4;
  const std::int64_t slice = 2 * (2 * others * 4 + 4 + encoded_bytes_of_block / ops::kWireBlock);
  const std::int64_t most_blocks = std::min(bytes / 2 / nodes, bytes / (nodes + slice)) / ops::kWireBlock;
  check(most_blocks > 0, "staging holds a block for each part of a sum by nodes");
  NodeSumsPlan plan;
  if (count == 0) return plan;
  const std::int64_t blocks = ops::wire_blocks(count);
  plan.chunks = (blocks + most_blocks - 1) / most_blocks;
  // Chunks of equal length: a short chunk would be sent in small messages.
  const std::int64_t chunk_blocks = (blocks + plan.chunks - 1) / plan.chunks;
  plan.chunk = chunk_blocks * ops::kWireBlock;
  plan.chunks = (blocks + chunk_blocks - 1) / chunk_blocks;
  const std::int64_t room = (bytes / plan.chunk - nodes) / slice;
  plan.groups = (charges + std::min(room, charges) - 1) / std::min(room, charges);
  plan.group = (charges + plan.groups - 1) / plan.groups;
  return plan;
}

// One reduce-scatter on one rank. `inside` exchanges with the ranks of the node, one message for each of them
// in a step. `leaving` and `across` exchange node sums. Each has two sets of buffers, so that messages of one
// step or chunk are under way while another is added.
class NodeSums {
 public:
  NodeSums(Call& call, const Staging& staging, const Hierarchy& hierarchy, const ReduceScatterArgs& args)
      : h_(hierarchy),
        args_(args),
        plan_(plan_of(staging.bytes(), hierarchy, args.count)),
        me_(call.place().rank),
        node_(h_.node_of[index(me_)]),
        node_ranks_(h_.node_ranks(me_)),
        inside_{Messages(call), Messages(call)},
        leaving_{Messages(call), Messages(call)},
        across_{Messages(call), Messages(call)} {
    std::byte* at = staging.arrive;
    const auto take = [&at](std::size_t bytes) { return std::exchange(at, at + bytes); };
    const std::size_t group = index(plan_.group) * slot();
    for (Set& set : sets_) {
      set.arriving = take(group * (node_ranks_.size() - 1));
      set.packed = take(group * (node_ranks_.size() - 1));
      set.sums = take(group);
      set.encoded = take(index(plan_.group) * encoded_slot());
      set.nodes = take(h_.nodes.size() * slot());
    }
  }

  std::int64_t steps() const { return plan_.chunks * plan_.groups; }
  std::int64_t chunks() const { return plan_.chunks; }
  std::int64_t chunk_of(std::int64_t step) const { return step / plan_.groups; }
  bool begins_chunk(std::int64_t step) const { return step % plan_.groups == 0; }
  bool ends_chunk(std::int64_t step) const { return begins_chunk(step + 1); }
  Messages& inside(std::int64_t step) { return inside_[index(step % 2)]; }
  /// Node sums of this step that are sent to other nodes.
  Messages& leaving(std::int64_t step) { return leaving_[index(step % 2)]; }
  /// Node sums of this rank's slice from other nodes.
  Messages& across(std::int64_t chunk) { return across_[index(chunk % 2)]; }

  void post_inside(std::int64_t step) {
    const std::size_t bytes = values_bytes(chunk_of(step));
    for (const int peer : node_ranks_) {
      if (peer != me_) inside(step).receive(peer, arriving(step, peer), group(step, me_).size() * bytes);
    }
    for (const int peer : node_ranks_) {
      if (peer != me_) inside(step).send(peer, leaving_to(step, peer), group(step, peer).size() * bytes);
    }
  }

  void post_across(std::int64_t chunk) {
    for (int node = 0; node < static_cast<int>(h_.nodes.size()); ++node) {
      if (node != node_)
        across(chunk).receive(h_.delegate(node, me_), part_of(chunk, node), wire_bytes(chunk));
    }
  }

  /// Adds the values of the ranks of the node, in rank order, and sends the sums to the owners of the slices.
  void add(std::int64_t step) {
    const std::span<const int> targets = group(step, me_);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      const std::byte* sum = node_sum(step, i, targets[i]);
      if (targets[i] != me_) leaving(step).send(targets[i], sum, wire_bytes(chunk_of(step)));
    }
  }

  /// Adds the node sums in node order. The own sum is rounded like sent sums, so the result does not depend
  /// on the owner.
  void finish(std::int64_t chunk) {
    std::vector<const void*> parts;
    for (int node = 0; node < static_cast<int>(h_.nodes.size()); ++node)
      parts.push_back(part_of(chunk, node));
    ops::sum_parts({.wire = args_.wire,
                    .parts = parts,
                    .to = write_at(args_, chunk * plan_.chunk),
                    .to_dtype = args_.to_dtype,
                    .count = length(chunk),
                    .accumulate = args_.accumulate});
  }

 private:
  struct Set {
    std::byte* arriving = nullptr;  // [ranks of the node - 1, group, chunk] values
    std::byte* packed = nullptr;    // the same for values that leave
    std::byte* sums = nullptr;      // [group, chunk] fp32
    std::byte* encoded = nullptr;   // [group, chunk] in the wire format
    std::byte* nodes = nullptr;     // [nodes, chunk] in the wire format
  };

  std::size_t slot() const { return index(plan_.chunk) * sizeof(float); }
  std::size_t encoded_slot() const { return index(plan_.chunk / ops::kWireBlock) * encoded_bytes_of_block; }
  const Set& set(std::int64_t step) const { return sets_[index(step % 2)]; }
  std::int64_t length(std::int64_t chunk) const {
    return std::min(plan_.chunk, args_.count - chunk * plan_.chunk);
  }
  std::size_t values_bytes(std::int64_t chunk) const {
    return index(length(chunk)) * size_of(args_.from_dtype);
  }
  std::size_t wire_bytes(std::int64_t chunk) const { return ops::wire_bytes(args_.wire, length(chunk)); }

  /// Slices that `rank` adds in this step.
  std::span<const int> group(std::int64_t step, int rank) const {
    const std::span<const int> all = h_.charges(rank);
    const std::size_t first = std::min(all.size(), index(step % plan_.groups * plan_.group));
    return all.subspan(first, std::min(all.size() - first, index(plan_.group)));
  }
  const std::byte* own(std::int64_t chunk, int target) const {
    return read_at(args_, target * args_.count + chunk * plan_.chunk);
  }
  /// Offset of another rank of the node in `arriving` and `packed`.
  std::size_t place_of(int peer) const {
    const auto at = std::ranges::find(node_ranks_, peer) - node_ranks_.begin();
    const auto mine = std::ranges::find(node_ranks_, me_) - node_ranks_.begin();
    return index(at < mine ? at : at - 1) * index(plan_.group) * slot();
  }
  std::byte* arriving(std::int64_t step, int peer) const { return set(step).arriving + place_of(peer); }
  std::byte* part_of(std::int64_t chunk, int node) const { return set(chunk).nodes + index(node) * slot(); }

  /// Returns this rank's values for the group of `peer`, one slice after the other.
  const std::byte* leaving_to(std::int64_t step, int peer) const {
    const std::span<const int> targets = group(step, peer);
    if (targets.size() == 1) return own(chunk_of(step), targets[0]);
    std::byte* const packed = set(step).packed + place_of(peer);
    const std::size_t bytes = values_bytes(chunk_of(step));
    for (std::size_t i = 0; i < targets.size(); ++i)
      std::memcpy(packed + i * bytes, own(chunk_of(step), targets[i]), bytes);
    return packed;
  }

  /// Returns the node's sum of slice `target`, slice i of the group, in the wire format.
  const std::byte* node_sum(std::int64_t step, std::size_t i, int target) const {
    const std::int64_t chunk = chunk_of(step);
    std::vector<const void*> parts;
    for (const int peer : node_ranks_) {
      parts.push_back(peer == me_ ? own(chunk, target) : arriving(step, peer) + i * values_bytes(chunk));
    }
    std::byte* const kept = target == me_ ? part_of(chunk, node_) : nullptr;
    const bool encodes = args_.wire != Wire::f32;
    std::byte* const sum = kept != nullptr && !encodes ? kept : set(step).sums + i * slot();
    ops::sum_parts({.wire = ops::wire_of_values(Wire::f32, args_.from_dtype),
                    .parts = parts,
                    .to = sum,
                    .count = length(chunk)});
    if (!encodes) return sum;
    std::byte* const encoded = kept != nullptr ? kept : set(step).encoded + i * encoded_slot();
    ops::encode_values({.wire = args_.wire,
                        .from = sum,
                        .count = length(chunk),
                        .to = encoded,
                        .residual = residual_at(args_, target * args_.count + chunk * plan_.chunk)});
    return encoded;
  }

  const Hierarchy& h_;
  ReduceScatterArgs args_;
  NodeSumsPlan plan_;
  int me_;
  int node_;
  const std::vector<int>& node_ranks_;
  std::array<Set, 2> sets_;
  std::array<Messages, 2> inside_;
  std::array<Messages, 2> leaving_;
  std::array<Messages, 2> across_;
};

}  // namespace

Steps hierarchical_reduce_scatter_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                                        ReduceScatterArgs args) {
  NodeSums sums(call, staging, hierarchy, args);
  if (sums.steps() == 0) co_return;
  sums.post_inside(0);
  for (std::int64_t step = 0; step < sums.steps(); ++step) {
    const std::int64_t chunk = sums.chunk_of(step);
    if (sums.begins_chunk(step)) sums.post_across(chunk);
    if (step + 1 < sums.steps()) sums.post_inside(step + 1);
    while (!sums.inside(step).complete()) co_await pause;
    // The buffers of this step's sums hold sums of an earlier step.
    while (!sums.leaving(step).complete()) co_await pause;
    sums.add(step);
    if (!sums.ends_chunk(step) || chunk == 0) continue;
    while (!sums.across(chunk - 1).complete()) co_await pause;
    sums.finish(chunk - 1);
  }
  while (!sums.across(sums.chunks() - 1).complete()) co_await pause;
  sums.finish(sums.chunks() - 1);
  for (const int set : {0, 1}) {
    while (!sums.leaving(set).complete()) co_await pause;
  }
}

}  // namespace octet::comm
