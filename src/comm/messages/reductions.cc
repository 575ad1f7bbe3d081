// Reduce-scatters over a transport: along a tree in rank order, and hierarchical.
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "messages/hierarchy.h"
#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {

// A reduce-scatter that sums along a tree given by the caller, over one or more addends of every rank.

namespace {

const float* as_floats(const std::byte* values) {
  return reinterpret_cast<const float*>(values);
}

/// Addend `part` of another rank's chunk.
float* arriving(const Staging& staging, const Chunk& chunk, int rank, int part) {
  return reinterpret_cast<float*>(staging.arriving(chunk.set, rank)) + part * chunk.count;
}

void post_addends(Messages& messages, const Place& place, const Staging& staging,
                  const ReduceScatterArgs& args, const Chunk& chunk) {
  const std::size_t bytes = static_cast<std::size_t>(chunk.count) * sizeof(float);
  for (int d = 1; d < place.size; ++d) {
    const int peer = (place.rank - d + place.size) % place.size;
    for (int part = 0; part < args.order->parts[peer]; ++part) {
      messages.receive(peer, arriving(staging, chunk, peer, part), bytes);
    }
  }
  for (int d = 1; d < place.size; ++d) {
    const int peer = (place.rank + d) % place.size;
    for (const std::byte* addend : own_addends(args)) {
      messages.send(peer, as_floats(addend) + peer * args.count + chunk.start, bytes);
    }
  }
}

void sum_addends(const Place& place, const Staging& staging, const ReduceScatterArgs& args,
                 const Chunk& chunk) {
  std::vector<const float*> addends;
  for (int rank = 0; rank < place.size; ++rank) {
    if (rank == place.rank) {
      for (const std::byte* own : own_addends(args)) {
        addends.push_back(as_floats(own) + rank * args.count + chunk.start);
      }
      continue;
    }
    for (int part = 0; part < args.order->parts[rank]; ++part) {
      addends.push_back(arriving(staging, chunk, rank, part));
    }
  }
  ops::sum_tree({.addends = addends,
                 .merges = args.order->merges,
                 .to = static_cast<float*>(args.to) + chunk.start,
                 .count = chunk.count});
}

Steps add_alone(ReduceScatterArgs args) {
  std::vector<const float*> own;
  for (const std::byte* addend : own_addends(args)) own.push_back(as_floats(addend));
  ops::sum_tree({.addends = own,
                 .merges = args.order->merges,
                 .to = static_cast<float*>(args.to),
                 .count = args.count});
  co_return;
}

}  // namespace

void check_order(const ReduceScatterArgs& args, const Place& place) {
  const SumOrder& order = *args.order;
  const bool wide = args.wire == Wire::f32 && args.from_dtype == DType::f32 && args.to_dtype == DType::f32;
  check(wide && !args.accumulate, "a sum in a given order travels in fp32, into its place");
  check(static_cast<int>(order.parts.size()) == place.size, "an order of summation contains every rank");
  check(std::ranges::all_of(order.parts, [](int parts) { return parts >= 1; }), "every rank has an addend");
  check(static_cast<int>(args.earlier.size()) + 1 == order.parts[static_cast<std::size_t>(place.rank)],
        "a rank gives as many addends as the order says");
  const auto addends = std::accumulate(order.parts.begin(), order.parts.end(), std::size_t{0});
  check(order.merges.size() == addends, "an order of summation contains every addend");
  int height = 0;
  for (const int merges : order.merges) {
    height += 1 - merges;
    check(merges >= 0 && height >= 1, "only sums on the stack are added");
  }
  check(height == 1, "one sum is left");
}

Steps ordered_reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args) {
  if (call.place().size == 1) return add_alone(args);
  const std::int64_t most = *std::ranges::max_element(args.order->parts);
  const std::int64_t room = staging.chunk / most;
  check(room > 0, "the staging memory holds an element of every addend");
  return in_chunks(
      call, room, args.count,
      [&call, staging, args](Messages& messages, const Chunk& chunk) {
        post_addends(messages, call.place(), staging, args, chunk);
      },
      [&call, staging, args](const Chunk& chunk) { sum_addends(call.place(), staging, args, chunk); });
}

// Sums over ranks with full precision inside a node.

namespace {

// One reduce-scatter on one rank, chunk by chunk. `inside` exchanges with ranks of the same node. `across`
// exchanges between nodes after the node's sums are computed. Two sets of buffers let one chunk be sent
// inside the node while the previous chunk is sent across.
class HierarchicalSums {
 public:
  HierarchicalSums(Call& call, const Staging& staging, const Hierarchy& hierarchy,
                   const ReduceScatterArgs& args)
      : h_(hierarchy),
        args_(args),
        me_(call.place().rank),
        node_(h_.node_of[index(me_)]),
        node_ranks_(h_.node_ranks(me_)),
        charges_(h_.charges(me_)),
        inside_{Messages(call), Messages(call)},
        across_{Messages(call), Messages(call)} {
    const auto total = staging.bytes();
    chunk_ = static_cast<std::int64_t>(total) / 2 / h_.worst_bytes / ops::kWireBlock * ops::kWireBlock;
    check(chunk_ >= ops::kWireBlock, "staging holds a block for each part of a sum by nodes");
    for (int set = 0; set < 2; ++set)
      carve(set, staging.arrive + static_cast<std::size_t>(set) * (total / 2));
  }

  std::int64_t chunks() const { return (args_.count + chunk_ - 1) / chunk_; }
  Messages& inside(std::int64_t c) { return inside_[index(c % 2)]; }
  Messages& across(std::int64_t c) { return across_[index(c % 2)]; }

  void post_inside(std::int64_t c) {
    const auto bytes = index(length(c)) * size_of(args_.from_dtype);
    for (const int peer : node_ranks_) {
      if (peer == me_) continue;
      for (std::size_t i = 0; i < charges_.size(); ++i) inside(c).receive(peer, part(c, i, peer), bytes);
    }
    for (const int peer : node_ranks_) {
      if (peer == me_) continue;
      for (const int target : h_.charges(peer)) inside(c).send(peer, own(c, target), bytes);
    }
  }

  // Sends this node's sums for the ranks that this rank is the delegate of, except ranks of this node.
  void post_across(std::int64_t c) {
    const std::size_t bytes = ops::wire_bytes(args_.wire, length(c));
    for (int node = 0; node < static_cast<int>(h_.nodes.size()); ++node) {
      if (node != node_)
        across(c).receive(h_.delegate(node, me_), set(c).nodes + index(node) * slot(), bytes);
    }
    std::vector<const void*> parts;
    for (std::size_t i = 0; i < charges_.size(); ++i) {
      parts.clear();
      for (const int peer : node_ranks_) {
        parts.push_back(peer == me_ ? own(c, charges_[i]) : part(c, i, peer));
      }
      auto* sum = reinterpret_cast<float*>(set(c).sums + i * slot());
      ops::sum_parts({.wire = ops::wire_of_values(Wire::f32, args_.from_dtype),
                      .parts = parts,
                      .to = sum,
                      .count = length(c)});
      if (args_.wire != Wire::f32) {
        ops::encode_values({.wire = args_.wire,
                            .from = sum,
                            .count = length(c),
                            .to = encoded(c, i),
                            .residual = residual_at(args_, charges_[i] * args_.count + c * chunk_)});
      }
      if (charges_[i] != me_ && h_.node_of[index(charges_[i])] != node_) {
        across(c).send(charges_[i], leaving(c, i), bytes);
      }
    }
  }

  // The node's own sum is rounded like sent sums, so the result does not depend on the owner.
  void finish(std::int64_t c) {
    const auto mine = index(std::ranges::find(charges_, me_) - charges_.begin());
    std::vector<const void*> parts;
    for (int node = 0; node < static_cast<int>(h_.nodes.size()); ++node) {
      parts.push_back(node == node_ ? leaving(c, mine) : set(c).nodes + index(node) * slot());
    }
    ops::sum_parts({.wire = args_.wire,
                    .parts = parts,
                    .to = write_at(args_, c * chunk_),
                    .to_dtype = args_.to_dtype,
                    .count = length(c),
                    .accumulate = args_.accumulate});
  }

 private:
  struct Set {
    std::byte* parts = nullptr;    // [charges, ranks of the node - 1, chunk], in slots of fp32
    std::byte* sums = nullptr;     // [charges, chunk] fp32
    std::byte* nodes = nullptr;    // [nodes, chunk] in the wire format
    std::byte* encoded = nullptr;  // [charges, chunk] in the wire format
  };

  std::size_t slot() const { return static_cast<std::size_t>(chunk_) * sizeof(float); }
  void carve(int set, std::byte* at) {
    Set& s = sets_[index(set)];
    s.parts = at;
    s.sums = s.parts + charges_.size() * (node_ranks_.size() - 1) * slot();
    s.nodes = s.sums + charges_.size() * slot();
    s.encoded = s.nodes + h_.nodes.size() * slot();
  }
  const Set& set(std::int64_t c) const { return sets_[index(c % 2)]; }
  std::int64_t length(std::int64_t c) const { return std::min(chunk_, args_.count - c * chunk_); }
  const std::byte* own(std::int64_t c, int target) const {
    return read_at(args_, target * args_.count + c * chunk_);
  }
  std::byte* part(std::int64_t c, std::size_t charge, int peer) const {
    const auto place = std::ranges::find(node_ranks_, peer) - node_ranks_.begin();
    const auto mine = std::ranges::find(node_ranks_, me_) - node_ranks_.begin();
    const auto among = index(place < mine ? place : place - 1);
    return set(c).parts + (charge * (node_ranks_.size() - 1) + among) * slot();
  }
  std::byte* encoded(std::int64_t c, std::size_t charge) const {
    return set(c).encoded + charge * index(chunk_ / ops::kWireBlock) * encoded_bytes_of_block;
  }
  const std::byte* leaving(std::int64_t c, std::size_t charge) const {
    return args_.wire == Wire::f32 ? set(c).sums + charge * slot() : encoded(c, charge);
  }

  const Hierarchy& h_;
  ReduceScatterArgs args_;
  int me_;
  int node_;
  const std::vector<int>& node_ranks_;
  const std::vector<int>& charges_;
  std::int64_t chunk_ = 0;
  std::array<Set, 2> sets_;
  std::array<Messages, 2> inside_;
  std::array<Messages, 2> across_;
};

}  // namespace

Steps hierarchical_reduce_scatter_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                                        ReduceScatterArgs args) {
  HierarchicalSums reduce(call, staging, hierarchy, args);
  const std::int64_t chunks = reduce.chunks();
  if (chunks > 0) reduce.post_inside(0);
  for (std::int64_t c = 0; c < chunks; ++c) {
    if (c + 1 < chunks) reduce.post_inside(c + 1);
    while (!reduce.inside(c).complete()) co_await pause;
    reduce.post_across(c);
    if (c == 0) continue;
    while (!reduce.across(c - 1).complete()) co_await pause;
    reduce.finish(c - 1);
  }
  if (chunks == 0) co_return;
  while (!reduce.across(chunks - 1).complete()) co_await pause;
  reduce.finish(chunks - 1);
}

}  // namespace octet::comm
