#include "gpu/composed.h"

#include <algorithm>
#include <array>
#include <span>

#include "gpu/reduce_scatters.h"
#include "messages/transport_collectives.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {

Composed::Composed(Device& device, Stream& stream, Exchange& exchange, PeerAccess& access, const Place& place,
                   const Hierarchy& flat, const Hierarchy& hierarchy, const DeviceStaging& staging)
    : device_(device),
      stream_(stream),
      exchange_(exchange),
      place_(place),
      flat_(flat),
      hierarchy_(hierarchy),
      staging_(staging),
      pipeline_(device, stream, exchange, access, place),
      flat_reduce_(stream, place, staging, pipeline_) {}

void Composed::reduce_scatter(const ReduceScatterArgs& args) {
  if (args.count == 0) return;
  if (args.order != nullptr) return flat_reduce_.in_order(args);
  if (args.hierarchical && hierarchy_.several()) {
    const HierarchicalReduce reduce(stream_, place_.rank, hierarchy_, staging_);
    return reduce(args, pipeline_);
  }
  ReduceScatterArgs flat = args;
  if (args.hierarchical && place_.nodes == 1) flat.wire = Wire::f32;  // nothing leaves the node
  if (carrier_sums(flat)) return reduce_by_carrier(flat);
  flat_reduce_(flat);
}

bool Composed::carrier_sums(const ReduceScatterArgs& args) const {
  return summing_ != nullptr && args.earlier.empty() && (sums_bf16_ || args.from_dtype == DType::f32) &&
         ops::travels_as_it_lies(ops::wire_of_values(args.wire, args.from_dtype), args.from_dtype);
}

// The sum is in the own slice of `from` and is copied to `to` from there.
void Composed::reduce_by_carrier(const ReduceScatterArgs& args) {
  pipeline_.begin_elsewhere();
  summing_->sum(stream_, const_cast<void*>(args.from), args.count, args.from_dtype);
  const std::byte* const own = read_at(args, place_.rank * args.count);
  if (args.to != own) {
    const std::array<const void*, 1> sum = {own};
    ops::sum_parts(stream_, {.wire = ops::wire_of_values(args.wire, args.from_dtype),
                             .parts = sum,
                             .to = args.to,
                             .to_dtype = args.to_dtype,
                             .count = args.count,
                             .accumulate = args.accumulate});
  }
  // Counts one slice to every other rank, independent of NCCL's route.
  pipeline_.count_slices(args.count * static_cast<std::int64_t>(size_of(args.from_dtype)));
}

void Composed::gather_parts(Stream& stream, const Hierarchy& ways, std::size_t bytes,
                            const std::function<std::byte*(int)>& part, bool last) {
  const int me = place_.rank, nodes = static_cast<int>(ways.nodes.size());
  const int node = ways.node_of[index(me)];
  const std::vector<int>& node_ranks = ways.node_ranks(me);
  const auto mine = std::ranges::find(node_ranks, me) - node_ranks.begin();
  const auto peer_at = [&](std::size_t d) { return node_ranks[(index(mine) + d) % node_ranks.size()]; };
  PeerMessages messages;
  std::vector<Outgoing>& out = messages.out;
  std::vector<Incoming>& in = messages.in;
  for (std::size_t d = 1; d < node_ranks.size(); ++d) {
    out.push_back({peer_at(d), part(me), part(me), bytes});
    in.push_back({peer_at(d), part(peer_at(d)), bytes});
  }
  for (int d = 1; d < nodes; ++d) {
    out.push_back({ways.delegate((node + d) % nodes, me), part(me), part(me), bytes});
  }
  const auto from_afar = [&](int rank, const auto& act) {
    for (const int charge : ways.charges(rank)) {
      if (ways.node_of[index(charge)] != ways.node_of[index(rank)]) act(charge);
    }
  };
  from_afar(me, [&](int charge) { in.push_back({charge, part(charge), bytes}); });
  pipeline_.exchange(stream, messages, last && nodes == 1);
  if (nodes == 1) return;
  // Forwards the parts from other nodes inside this node.
  out.clear(), in.clear();
  for (std::size_t d = 1; d < node_ranks.size(); ++d) {
    from_afar(me, [&](int charge) { out.push_back({peer_at(d), part(charge), part(charge), bytes}); });
    from_afar(peer_at(d), [&](int charge) { in.push_back({peer_at(d), part(charge), bytes}); });
  }
  pipeline_.exchange(stream, messages, last);
}

void Composed::all_gather(const AllGatherArgs& args) {
  if (args.bytes == 0) return;
  const Hierarchy& ways = args.hierarchical ? hierarchy_ : flat_;
  if (pipeline_.goes_eagerly(index(args.bytes))) return gather_eagerly(args);
  const std::size_t whole = index(args.bytes) * index(place_.size);
  if (!exchange_.reaches(args.buffer, whole)) return gather_through_staging(args, ways);
  gather_parts(
      stream_, ways, index(args.bytes),
      [&](int member) { return static_cast<std::byte*>(args.buffer) + member * args.bytes; }, true);
}

void Composed::gather_through_staging(const AllGatherArgs& args, const Hierarchy& ways) {
  const auto place = [&](const Chunk& c, int member) {
    return static_cast<std::byte*>(args.buffer) + member * args.bytes + c.start;
  };
  pipeline_.in_chunks_carried(
      static_cast<std::int64_t>(staging_.part), args.bytes,
      [&](const Chunk& c) {
        device_.copy(stream_, staging_.arriving(c.number, place_.rank), place(c, place_.rank),
                     index(c.count));
      },
      [&](Stream& stream, const Chunk& c) {
        gather_parts(stream, ways, index(c.count),
                     [&](int member) { return staging_.arriving(c.number, member); });
      },
      [&](const Chunk& c) {
        for (int member = 0; member < place_.size; ++member) {
          if (member == place_.rank) continue;
          device_.copy(stream_, place(c, member), staging_.arriving(c.number, member), index(c.count));
        }
      });
}

void Composed::all_gather_values(const AllGatherValuesArgs& args) {
  if (args.count == 0) return;
  const auto element = static_cast<std::int64_t>(size_of(args.dtype));
  if (args.wire == Wire::f32 || ops::travels_as_it_lies(args.wire, args.dtype)) {
    return all_gather({.name = args.name,
                       .buffer = args.buffer,
                       .bytes = args.count * element,
                       .hierarchical = args.hierarchical});
  }
  const Hierarchy& ways = args.hierarchical ? hierarchy_ : flat_;
  const auto values = [&](const Chunk& c, int member) {
    return static_cast<std::byte*>(args.buffer) + (member * args.count + c.start) * element;
  };
  pipeline_.in_chunks_carried(
      staging_.chunk_of(args.wire), args.count,
      [&](const Chunk& c) {
        // Rounding errors are added to the residual of the own slice, which holds the errors of earlier
        // reductions. The next reduction corrects both.
        ops::encode_values(stream_, {.wire = args.wire,
                                     .from = values(c, place_.rank),
                                     .dtype = args.dtype,
                                     .count = c.count,
                                     .to = staging_.arriving(c.number, place_.rank),
                                     .residual = args.residual == nullptr ? nullptr : args.residual + c.start,
                                     .adds_residual = false});
      },
      [&](Stream& stream, const Chunk& c) {
        gather_parts(stream, ways, ops::wire_bytes(args.wire, c.count),
                     [&](int member) { return staging_.arriving(c.number, member); });
      },
      [&](const Chunk& c) {
        for (int member = 0; member < place_.size; ++member) {
          ops::decode_values(stream_, {.wire = args.wire,
                                       .part = staging_.arriving(c.number, member),
                                       .count = c.count,
                                       .dtype = args.dtype,
                                       .to = values(c, member)});
        }
      });
}

void Composed::all_reduce(ops::Combine how, void* values, std::int64_t count) {
  if (count == 0) return;
  const std::size_t element = ops::element_bytes(how);
  if (pipeline_.goes_eagerly(index(count) * element)) return all_reduce_eagerly(how, values, count);
  const auto place = [&](const Chunk& c) {
    return static_cast<std::byte*>(values) + index(c.start) * element;
  };
  // A sum overwrites its own addend. It therefore waits until the addend is sent, as after a whole exchange.
  pipeline_.in_chunks_carried(
      static_cast<std::int64_t>(staging_.part / element), count, {},
      [&](Stream& stream, const Chunk& c) {
        PeerMessages messages;
        auto& [out, in] = messages;
        for (int d = 1; d < place_.size; ++d) {
          const int to = (place_.rank + d) % place_.size,
                    from = (place_.rank - d + place_.size) % place_.size;
          out.push_back({to, place(c), staging_.arriving(c.number, place_.rank), index(c.count) * element});
          in.push_back({from, staging_.arriving(c.number, from), index(c.count) * element});
        }
        pipeline_.exchange(stream, messages);
      },
      [&](const Chunk& c) {
        std::vector<const void*> parts;
        for (int member = 0; member < place_.size; ++member) {
          parts.push_back(member == place_.rank ? place(c) : staging_.arriving(c.number, member));
        }
        ops::combine_parts(stream_, {.how = how, .parts = parts, .to = place(c), .count = c.count});
      });
}

void Composed::all_to_all(const AllToAllArgs& args) {
  if (args.bytes == 0) return;
  const int me = place_.rank, size = place_.size;
  const auto leaves = [&](int member) {
    return static_cast<const std::byte*>(args.from) + member * args.bytes;
  };
  const auto arrives = [&](int member) { return static_cast<std::byte*>(args.to) + member * args.bytes; };
  device_.copy(stream_, arrives(me), leaves(me), index(args.bytes));
  // Exchanges the part [start, start + count) of every slice. place(sender) is the address of incoming bytes.
  const auto messages = [&](std::int64_t start, std::int64_t count, const auto& place) {
    PeerMessages all;
    for (int d = 1; d < size; ++d) {
      const int to = (me + d) % size, from = (me - d + size) % size;
      all.out.push_back({to, leaves(to) + start, place(me), index(count)});
      all.in.push_back({from, place(from), index(count)});
    }
    return all;
  };
  if (exchange_.reaches(args.to, index(args.bytes) * index(size))) {
    return pipeline_.exchange(stream_, messages(0, args.bytes, arrives), true);
  }
  pipeline_.in_chunks(
      static_cast<std::int64_t>(staging_.part), args.bytes, {},
      [&](const Chunk& c) {
        return messages(c.start, c.count, [&](int member) { return staging_.arriving(c.number, member); });
      },
      [&](const Chunk& c) {
        for (int member = 0; member < size; ++member) {
          if (member == me) continue;
          device_.copy(stream_, arrives(member) + c.start, staging_.arriving(c.number, member),
                       index(c.count));
        }
      });
}

// Incoming bytes pass through staging memory, because only the receiver has the address of their destination.
// Both directions use the partners' chunk numbers, because a partner may have only one direction.
void Composed::pass(const SendArgs* out, const ReceiveArgs* in) {
  const std::int64_t leaving = out == nullptr ? 0 : out->bytes, arriving = in == nullptr ? 0 : in->bytes;
  if (leaving == 0 && arriving == 0) return;
  const auto length = static_cast<std::int64_t>(staging_.part);
  const auto part = [&](const Chunk& c, std::int64_t of) {
    return index(std::clamp<std::int64_t>(of - c.start, 0, length));
  };
  pipeline_.in_chunks(
      length, std::max(leaving, arriving), {},
      [&](const Chunk& c) {
        PeerMessages messages;
        if (const std::size_t bytes = part(c, leaving); bytes > 0) {
          messages.out.push_back({out->to, static_cast<const std::byte*>(out->from) + c.start,
                                  staging_.arriving(c.number, place_.rank), bytes});
        }
        if (const std::size_t bytes = part(c, arriving); bytes > 0) {
          messages.in.push_back({in->from, staging_.arriving(c.number, in->from), bytes});
        }
        return messages;
      },
      [&](const Chunk& c) {
        const std::size_t bytes = part(c, arriving);
        if (bytes == 0) return;
        device_.copy(stream_, static_cast<std::byte*>(in->to) + c.start,
                     staging_.arriving(c.number, in->from), bytes);
      });
}

// Collectives of few bytes over carriers that send eagerly. Each sender has its own place in every receiver's
// memory, so no handshake is needed.

void Composed::gather_eagerly(const AllGatherArgs& args) {
  const std::size_t bytes = index(args.bytes);
  std::byte* const buffer = static_cast<std::byte*>(args.buffer);
  pipeline_.exchange_eagerly(
      bytes, [&](int) { return buffer + index(place_.rank) * bytes; }, /*marks_end=*/false);
  std::array<Piece, PeerAccess::most_moved> pieces;
  std::size_t others = 0;
  for (int member = 0; member < place_.size; ++member) {
    if (member == place_.rank) continue;
    pieces[others++] = {pipeline_.came_eagerly(member), buffer + index(member) * bytes, bytes};
  }
  pipeline_.take_eagerly({pieces.data(), others});
}

void Composed::all_reduce_eagerly(ops::Combine how, void* values, std::int64_t count) {
  pipeline_.exchange_eagerly(index(count) * ops::element_bytes(how), [&](int) { return values; });
  std::vector<const void*> parts;
  for (int member = 0; member < place_.size; ++member) {
    parts.push_back(member == place_.rank ? values : pipeline_.came_eagerly(member));
  }
  ops::combine_parts(stream_, {.how = how, .parts = parts, .to = values, .count = count});
}

}  // namespace octet::comm
