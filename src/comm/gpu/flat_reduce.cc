#include "gpu/flat_reduce.h"

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

}  // namespace octet::comm
