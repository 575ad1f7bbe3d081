#include "gpu/hierarchical_reduce.h"

#include <algorithm>
#include <vector>

#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

std::size_t position(const std::vector<int>& of, int rank) {
  return index(std::ranges::find(of, rank) - of.begin());
}

/// Layout of a set of staging memory of `rank`, in bytes from its start. All senders use the same layout.
/// Slots hold a chunk in fp32.
class Layout {
 public:
  Layout(const Hierarchy& h, int rank, std::int64_t chunk)
      : node_ranks_(h.node_ranks(rank)),
        charges_(h.charges(rank)),
        nodes_(h.nodes.size()),
        chunk_(chunk),
        slot_(index(chunk) * sizeof(float)) {}

  /// Offset of the values of `mate` for the slice of `charge`.
  std::size_t part(int charge, int peer) const {
    return (position(charges_, charge) * node_ranks_.size() + position(node_ranks_, peer)) * slot_;
  }
  std::size_t sum(std::size_t charge) const {
    return (charges_.size() * node_ranks_.size() + charge) * slot_;
  }
  std::size_t node(std::size_t node) const { return sum(charges_.size()) + node * slot_; }
  std::size_t encoded(std::size_t charge) const {
    return node(nodes_) + charge * index(chunk_ / ops::kWireBlock) * encoded_bytes_of_block;
  }

 private:
  const std::vector<int>& node_ranks_;
  const std::vector<int>& charges_;
  std::size_t nodes_;
  std::int64_t chunk_;
  std::size_t slot_;
};

/// Returns the bytes of a set per element of a chunk, on the rank that needs most.
std::size_t worst_bytes(const Hierarchy& h) {
  std::size_t worst = 1;
  for (int rank = 0; rank < h.size(); ++rank) {
    const std::size_t charges = h.charges(rank).size(), node_ranks = h.node_ranks(rank).size();
    const std::size_t floats = charges * node_ranks + charges + h.nodes.size();
    worst = std::max(worst, floats * sizeof(float) + charges * encoded_bytes_of_block / ops::kWireBlock);
  }
  return worst;
}

}  // namespace

// Chunks run one after the other: transfers between nodes dominate, and sums inside a node are short.
void HierarchicalReduce::operator()(const ReduceScatterArgs& args, const ExchangeMessages& exchange) const {
  const Hierarchy& h = hierarchy_;
  const int me = rank_, node = h.node_of[index(me)];
  const std::vector<int>&node_ranks = h.node_ranks(me), &charges = h.charges(me);
  const std::int64_t chunk =
      static_cast<std::int64_t>(staging_.set_bytes() / worst_bytes(h)) / ops::kWireBlock * ops::kWireBlock;
  check(chunk >= ops::kWireBlock, "staging holds a block for each part of a sum by nodes");
  const Layout mine(h, me, chunk);
  std::byte* const set = staging_.set(0);
  const Wire inside = ops::wire_of_values(Wire::f32, args.from_dtype);
  for (std::int64_t start = 0; start < args.count; start += chunk) {
    const std::int64_t n = std::min(chunk, args.count - start);
    const auto own = [&](int target) { return read_at(args, target * args.count + start); };
    PeerMessages messages;
    auto& [out, in] = messages;
    for (const int peer : node_ranks) {
      if (peer == me) continue;
      const Layout theirs(h, peer, chunk);
      for (const int charge : h.charges(peer)) {
        out.push_back({peer, own(charge), set + theirs.part(charge, me), ops::wire_bytes(inside, n)});
      }
      for (const int charge : charges) {
        in.push_back({peer, set + mine.part(charge, peer), ops::wire_bytes(inside, n)});
      }
    }
    exchange(messages);

    out.clear(), in.clear();
    const std::size_t bytes = ops::wire_bytes(args.wire, n);
    const auto leaves = [&](std::size_t i) {
      return set + (args.wire == Wire::f32 ? mine.sum(i) : mine.encoded(i));
    };
    for (std::size_t i = 0; i < charges.size(); ++i) {
      std::vector<const void*> parts;
      for (const int peer : node_ranks) {
        parts.push_back(peer == me ? own(charges[i]) : set + mine.part(charges[i], peer));
      }
      ops::sum_parts(stream_, {.wire = inside, .parts = parts, .to = set + mine.sum(i), .count = n});
      if (args.wire != Wire::f32) {
        ops::encode_values(stream_, {.wire = args.wire,
                                     .from = set + mine.sum(i),
                                     .count = n,
                                     .to = set + mine.encoded(i),
                                     .residual = residual_at(args, charges[i] * args.count + start)});
      }
      if (h.node_of[index(charges[i])] == node) continue;
      const Layout theirs(h, charges[i], chunk);
      out.push_back({charges[i], leaves(i), set + theirs.node(index(node)), bytes});
    }
    for (std::size_t other = 0; other < h.nodes.size(); ++other) {
      if (static_cast<int>(other) == node) continue;
      in.push_back({h.delegate(static_cast<int>(other), me), set + mine.node(other), bytes});
    }
    exchange(messages);

    // The node's own sum is rounded like sent sums, so the result does not depend on the owner.
    std::vector<const void*> parts;
    for (std::size_t other = 0; other < h.nodes.size(); ++other) {
      parts.push_back(static_cast<int>(other) == node ? leaves(position(charges, me))
                                                      : set + mine.node(other));
    }
    ops::sum_parts(stream_, {.wire = args.wire,
                             .parts = parts,
                             .to = write_at(args, start),
                             .to_dtype = args.to_dtype,
                             .count = n,
                             .accumulate = args.accumulate});
  }
}

}  // namespace octet::comm
