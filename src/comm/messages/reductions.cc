// Reduce-scatters over a transport: along a tree in rank order, and the choice among all reduce-scatters.
#include <algorithm>
#include <numeric>
#include <vector>

#include "messages/hierarchy.h"
#include "messages/rounds.h"
#include "messages/transport_collectives.h"
#include "octet/base/error.h"
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

Steps chosen_reduce_scatter_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                                  ReduceScatterArgs args) {
  if (args.order != nullptr) return ordered_reduce_scatter_steps(call, staging, args);
  const bool in_nodes_first = args.hierarchical && hierarchy.several();
  if (args.hierarchical && hierarchy.nodes.size() == 1) args.wire = Wire::f32;  // nothing leaves the node
  if (reduces_in_rounds(hierarchy.size(), args, in_nodes_first))
    return reduce_scatter_in_rounds_steps(call, args, in_nodes_first);
  return in_nodes_first ? hierarchical_reduce_scatter_steps(call, staging, hierarchy, args)
                        : reduce_scatter_steps(call, staging, args);
}

}  // namespace octet::comm
