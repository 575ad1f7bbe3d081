#include "gpu/reduce_scatters.h"

#include <algorithm>
#include <vector>

#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {

// Returns the address of the bytes of a chunk of an addend that are sent to a member: in the addend, or
// encoded in staging memory.
const std::byte* FlatReduce::leaves(const ReduceScatterArgs& args, const Chunk& c, std::size_t addend,
                                    int member) const {
  if (!ops::travels_as_it_lies(args.wire, args.from_dtype))
    return staging_.leaving(c.number, member) + addend * addend_pitch(ops::wire_bytes(args.wire, c.count));
  return values_of(args, addend, member * args.count + c.start);
}

// Returns the address of element `i` of an addend; the last addend is `from`.
const std::byte* FlatReduce::values_of(const ReduceScatterArgs& args, std::size_t addend, std::int64_t i) {
  if (addend == args.earlier.size()) return read_at(args, i);
  return static_cast<const std::byte*>(args.earlier[addend]) + index(i) * size_of(args.from_dtype);
}

// The own part is rounded like sent parts, so the sum does not depend on the owner.
void FlatReduce::encode(const ReduceScatterArgs& args, const Chunk& c) const {
  for (int member = 0; member < size_; ++member) {
    for (std::size_t addend = 0; addend <= args.earlier.size(); ++addend) {
      auto* to = const_cast<std::byte*>(leaves(args, c, addend, member));
      ops::encode_values(stream_, {.wire = args.wire,
                                   .from = values_of(args, addend, member * args.count + c.start),
                                   .dtype = args.from_dtype,
                                   .count = c.count,
                                   .to = to,
                                   .residual = residual_at(args, member * args.count + c.start)});
    }
  }
}

void FlatReduce::sum(const ReduceScatterArgs& args, const Chunk& c,
                     const std::function<const std::byte*(int)>& arrived) const {
  const std::size_t pitch = addend_pitch(ops::wire_bytes(args.wire, c.count));
  std::vector<const void*> parts;
  for (int member = 0; member < size_; ++member) {
    for (std::size_t addend = 0; addend <= args.earlier.size(); ++addend)
      parts.push_back(member == rank_ ? leaves(args, c, addend, member) : arrived(member) + addend * pitch);
  }
  ops::sum_parts(stream_, {.wire = args.wire,
                           .parts = parts,
                           .to = write_at(args, c.start),
                           .to_dtype = args.to_dtype,
                           .count = c.count,
                           .accumulate = args.accumulate});
}

void FlatReduce::reduce_eagerly(const ReduceScatterArgs& args) const {
  const Chunk whole{.count = args.count};
  if (!ops::travels_as_it_lies(args.wire, args.from_dtype)) encode(args, whole);
  pipeline_.exchange_eagerly(ops::wire_bytes(args.wire, args.count),
                             [&](int member) { return leaves(args, whole, 0, member); });
  sum(args, whole, [&](int member) { return pipeline_.came_eagerly(member); });
}

void FlatReduce::operator()(ReduceScatterArgs args) const {
  args.wire = ops::wire_of_values(args.wire, args.from_dtype);
  const std::size_t addends = args.earlier.size() + 1;
  if (addends == 1 && pipeline_.goes_eagerly(ops::wire_bytes(args.wire, args.count)))
    return reduce_eagerly(args);
  const bool lies = ops::travels_as_it_lies(args.wire, args.from_dtype);
  // Values that are sent unconverted need no send staging. The receive staging then gets the whole set.
  // Chunks are twice as long, so the ranks wait for each other half as often.
  const std::int64_t wide = lies ? 2 : 1;
  const auto arriving = [&](const Chunk& c, int member) {
    return staging_.set(c.number) + index(wide * member) * staging_.part;
  };
  pipeline_.in_chunks(
      chunk_for(wide * staging_.chunk_of(args.wire), addends), args.count,
      lies ? ChunkPipeline::Act{} : ChunkPipeline::Act{[&](const Chunk& c) { encode(args, c); }},
      [&](const Chunk& c) {
        const std::size_t bytes = ops::wire_bytes(args.wire, c.count);
        PeerMessages messages;
        auto& [out, in] = messages;
        for (int d = 1; d < size_; ++d) {
          const int to = (rank_ + d) % size_, from = (rank_ - d + size_) % size_;
          for (std::size_t addend = 0; addend < addends; ++addend) {
            out.push_back(
                {to, leaves(args, c, addend, to), arriving(c, rank_) + addend * addend_pitch(bytes), bytes});
            in.push_back({from, arriving(c, from) + addend * addend_pitch(bytes), bytes});
          }
        }
        return messages;
      },
      [&](const Chunk& c) { sum(args, c, [&](int member) { return arriving(c, member); }); });
}

// The addends of a rank are sent one after the other, in chunks such that all addends of a chunk fit into a
// part.
void FlatReduce::in_order(const ReduceScatterArgs& args) const {
  std::vector<const float*> own;
  for (const std::byte* addend : own_addends(args)) own.push_back(reinterpret_cast<const float*>(addend));
  const int most = *std::ranges::max_element(args.order->parts);
  const auto room = static_cast<std::int64_t>(staging_.part / sizeof(float)) / most / 4 * 4;
  check(room > 0, "the staging memory holds an element of every addend");
  const auto arriving = [&](const Chunk& c, int member, std::int64_t part) {
    return reinterpret_cast<float*>(staging_.arriving(c.number, member)) + part * room;
  };
  pipeline_.in_chunks(
      room, args.count, {},
      [&](const Chunk& c) {
        const std::size_t bytes = index(c.count) * sizeof(float);
        PeerMessages messages;
        auto& [out, in] = messages;
        for (int d = 1; d < size_; ++d) {
          const int to = (rank_ + d) % size_, from = (rank_ - d + size_) % size_;
          for (std::size_t part = 0; part < own.size(); ++part) {
            out.push_back({to, own[part] + to * args.count + c.start,
                           arriving(c, rank_, static_cast<std::int64_t>(part)), bytes});
          }
          for (int part = 0; part < args.order->parts[index(from)]; ++part) {
            in.push_back({from, arriving(c, from, part), bytes});
          }
        }
        return messages;
      },
      [&](const Chunk& c) {
        std::vector<const float*> addends;
        for (int member = 0; member < size_; ++member) {
          for (int part = 0; part < args.order->parts[index(member)]; ++part) {
            addends.push_back(member == rank_ ? own[index(part)] + member * args.count + c.start
                                              : arriving(c, member, part));
          }
        }
        ops::sum_tree(stream_, {.addends = addends,
                                .merges = args.order->merges,
                                .to = static_cast<float*>(args.to) + c.start,
                                .count = c.count});
      });
}

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
void HierarchicalReduce::operator()(const ReduceScatterArgs& args, ChunkPipeline& pipeline) const {
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
    pipeline.exchange(stream_, messages);

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
    pipeline.exchange(stream_, messages);

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
