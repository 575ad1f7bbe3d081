#include "gpu/composed.h"

#include <algorithm>
#include <utility>

#include "gpu/hierarchical_reduce.h"
#include "messages/transport_collectives.h"
#include "octet/base/error.h"
#include "octet/base/index.h"
#include "octet/ops/wire.h"

namespace octet::comm {

Composed::Composed(Device& device, Stream& stream, Exchange& exchange, PeerAccess& access, const Place& place,
                   const Hierarchy& flat, const Hierarchy& hierarchy, const DeviceStaging& staging)
    : device_(device),
      stream_(stream),
      exchange_(exchange),
      access_(access),
      beside_(device.make_stream({.name = stream.name() + " carry", .mode = StreamOptions::Mode::worker})),
      place_(place),
      flat_(flat),
      hierarchy_(hierarchy),
      staging_(staging) {
  for (auto* events : {&prepared_, &carried_}) {
    for (auto& event : *events) event = device.make_event();
  }
}

Composed::Sent Composed::take_sent() {
  return std::exchange(sent_, {});
}

void Composed::write(std::optional<CounterStep>& mark) {
  if (mark) access_.steps(stream_, {&*mark, 1});
  mark.reset();
}

void Composed::end() {
  write(marks_.before);
  write(marks_.after);
}

void Composed::count(std::span<const Outgoing> out) {
  for (const Outgoing& piece : out) {
    sent_.bytes += static_cast<std::int64_t>(piece.bytes);
    if (place_.node_of[index(piece.peer)] != place_.node) {
      sent_.between_nodes += static_cast<std::int64_t>(piece.bytes);
    }
  }
}

void Composed::exchange(Stream& stream, const Messages& messages, bool last) {
  count(messages.out);
  if (&stream != &stream_ || !exchange_.takes_marks()) {
    write(marks_.before);
    exchange_.exchange(stream, messages.out, messages.in);
    return;
  }
  Marks marks{.before = std::exchange(marks_.before, std::nullopt), .after = std::nullopt};
  if (last) std::swap(marks.after, marks_.after);
  exchange_.exchange_marked(stream, messages.out, messages.in, marks);
}

// Returns the number of elements of a chunk that fit into a part when encoded.
std::int64_t Composed::chunk_of(Wire wire) const {
  const std::size_t blocks = staging_.part / ops::wire_bytes(wire, ops::kWireBlock);
  return static_cast<std::int64_t>(blocks) * ops::kWireBlock;
}

Composed::Chunk Composed::chunk_at(std::int64_t number, std::int64_t length, std::int64_t count) {
  return {.number = number, .start = number * length, .count = std::min(length, count - number * length)};
}

// The queue's stream encodes a chunk and sums the previous one while the second stream carries. A set of
// staging memory is free after its chunk is finished. The order of the queue's stream ensures that.
void Composed::in_chunks_carried(std::int64_t length, std::int64_t count, const Act& prepare,
                                 const std::function<void(Stream&, const Chunk&)>& carry, const Act& finish) {
  const std::int64_t chunks = chunks_of(length, count);
  const auto at = [&](std::int64_t c) { return chunk_at(c, length, count); };
  if (chunks == 1) {  // nothing to overlap
    if (prepare) prepare(at(0));
    carry(stream_, at(0));
    finish(at(0));
    return;
  }
  write(marks_.before);
  for (std::int64_t c = 0; c <= chunks; ++c) {
    if (c < chunks) {
      Event& prepared = *prepared_[index(c % DeviceStaging::sets)];
      if (prepare) prepare(at(c));
      stream_.record(prepared);
      beside_->wait(prepared);
      carry(*beside_, at(c));
      beside_->record(*carried_[index(c % DeviceStaging::sets)]);
    }
    if (c == 0) continue;
    stream_.wait(*carried_[index((c - 1) % DeviceStaging::sets)]);
    finish(at(c - 1));
  }
}

// If the exchange works in steps, only sending runs on the second stream. The queue's stream waits for
// incoming bytes itself. A chunk is therefore sent as soon as the previous chunk is sent, even if that
// chunk's incoming bytes have not arrived.
void Composed::in_chunks(std::int64_t length, std::int64_t count, const Act& prepare,
                         const std::function<Messages(const Chunk&)>& messages, const Act& finish) {
  const std::int64_t chunks = chunks_of(length, count);
  if (chunks == 1 || !exchange_.in_steps()) {
    return in_chunks_carried(
        length, count, prepare, [&](Stream& stream, const Chunk& c) { exchange(stream, messages(c)); },
        finish);
  }
  write(marks_.before);
  std::array<Messages, DeviceStaging::sets> under_way;
  for (std::int64_t c = 0; c <= chunks; ++c) {
    const std::size_t set = index(c % DeviceStaging::sets);
    if (c < chunks) {
      if (prepare) {
        if (c >= DeviceStaging::sets) stream_.wait(*carried_[set]);  // the set is free
        prepare(chunk_at(c, length, count));
      }
      under_way[set] = messages(chunk_at(c, length, count));
      exchange_.offer(stream_, under_way[set].in);
      if (c == 0 || prepare) {
        stream_.record(*prepared_[set]);
        beside_->wait(*prepared_[set]);
      }
      this->count(under_way[set].out);
      exchange_.send(*beside_, under_way[set].out);
      beside_->record(*carried_[set]);
    }
    if (c == 0) continue;
    exchange_.await(stream_, under_way[index((c - 1) % DeviceStaging::sets)].in);
    finish(chunk_at(c - 1, length, count));
  }
  // Later work may overwrite the send buffers.
  stream_.wait(*carried_[index((chunks - 1) % DeviceStaging::sets)]);
}

void Composed::reduce_scatter(const ReduceScatterArgs& args) {
  if (args.count == 0) return;
  if (args.order != nullptr) return reduce_in_order(args);
  if (args.hierarchical && hierarchy_.several()) {
    const HierarchicalReduce reduce(stream_, place_.rank, hierarchy_, staging_);
    return reduce(args, [this](const Messages& messages) { exchange(stream_, messages); });
  }
  ReduceScatterArgs flat = args;
  if (args.hierarchical && place_.nodes == 1) flat.wire = Wire::f32;  // nothing leaves the node
  if (carrier_sums(flat)) return reduce_by_carrier(flat);
  reduce_flat(flat);
}

bool Composed::carrier_sums(const ReduceScatterArgs& args) const {
  return summing_ != nullptr && args.earlier.empty() && (sums_bf16_ || args.from_dtype == DType::f32) &&
         ops::travels_as_it_lies(ops::wire_of_values(args.wire, args.from_dtype), args.from_dtype);
}

// The sum is in the own slice of `from` and is copied to `to` from there.
void Composed::reduce_by_carrier(const ReduceScatterArgs& args) {
  write(marks_.before);
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
  const std::int64_t bytes = args.count * static_cast<std::int64_t>(size_of(args.from_dtype));
  sent_.bytes += bytes * (place_.size - 1);
  sent_.between_nodes += bytes * (place_.size - place_.local_size);
}

// Returns the address of the bytes of a chunk of an addend that are sent to a member: in the addend, or
// encoded in staging memory.
const std::byte* Composed::leaves(const ReduceScatterArgs& args, const Chunk& c, std::size_t addend,
                                  int member) const {
  if (!ops::travels_as_it_lies(args.wire, args.from_dtype))
    return staging_.leaving(c.number, member) + addend * addend_pitch(ops::wire_bytes(args.wire, c.count));
  return values_of(args, addend, member * args.count + c.start);
}

// Returns the address of element `i` of an addend; the last addend is `from`.
const std::byte* Composed::values_of(const ReduceScatterArgs& args, std::size_t addend, std::int64_t i) {
  if (addend == args.earlier.size()) return read_at(args, i);
  return static_cast<const std::byte*>(args.earlier[addend]) + index(i) * size_of(args.from_dtype);
}

// The own part is rounded like sent parts, so the sum does not depend on the owner.
void Composed::encode(const ReduceScatterArgs& args, const Chunk& c) {
  for (int member = 0; member < place_.size; ++member) {
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

void Composed::sum(const ReduceScatterArgs& args, const Chunk& c,
                   const std::function<const std::byte*(int)>& arrived) {
  const std::size_t pitch = addend_pitch(ops::wire_bytes(args.wire, c.count));
  std::vector<const void*> parts;
  for (int member = 0; member < place_.size; ++member) {
    for (std::size_t addend = 0; addend <= args.earlier.size(); ++addend)
      parts.push_back(member == place_.rank ? leaves(args, c, addend, member)
                                            : arrived(member) + addend * pitch);
  }
  ops::sum_parts(stream_, {.wire = args.wire,
                           .parts = parts,
                           .to = write_at(args, c.start),
                           .to_dtype = args.to_dtype,
                           .count = c.count,
                           .accumulate = args.accumulate});
}

void Composed::reduce_flat(ReduceScatterArgs args) {
  args.wire = ops::wire_of_values(args.wire, args.from_dtype);
  const std::size_t addends = args.earlier.size() + 1;
  if (addends == 1 && goes_eagerly(ops::wire_bytes(args.wire, args.count))) return reduce_eagerly(args);
  const bool lies = ops::travels_as_it_lies(args.wire, args.from_dtype);
  // Values that are sent unconverted need no send staging. The receive staging then gets the whole set.
  // Chunks are twice as long, so the ranks wait for each other half as often.
  const std::int64_t wide = lies ? 2 : 1;
  const auto arriving = [&](const Chunk& c, int member) {
    return staging_.set(c.number) + index(wide * member) * staging_.part;
  };
  in_chunks(
      chunk_for(wide * chunk_of(args.wire), addends), args.count,
      lies ? Act{} : Act{[&](const Chunk& c) { encode(args, c); }},
      [&](const Chunk& c) {
        const std::size_t bytes = ops::wire_bytes(args.wire, c.count);
        Messages messages;
        auto& [out, in] = messages;
        for (int d = 1; d < place_.size; ++d) {
          const int to = (place_.rank + d) % place_.size,
                    from = (place_.rank - d + place_.size) % place_.size;
          for (std::size_t addend = 0; addend < addends; ++addend) {
            out.push_back({to, leaves(args, c, addend, to),
                           arriving(c, place_.rank) + addend * addend_pitch(bytes), bytes});
            in.push_back({from, arriving(c, from) + addend * addend_pitch(bytes), bytes});
          }
        }
        return messages;
      },
      [&](const Chunk& c) { sum(args, c, [&](int member) { return arriving(c, member); }); });
}

// The addends of a rank are sent one after the other, in chunks such that all addends of a chunk fit into a
// part.
void Composed::reduce_in_order(const ReduceScatterArgs& args) {
  std::vector<const float*> own;
  for (const std::byte* addend : own_addends(args)) own.push_back(reinterpret_cast<const float*>(addend));
  const int most = *std::ranges::max_element(args.order->parts);
  const auto room = static_cast<std::int64_t>(staging_.part / sizeof(float)) / most / 4 * 4;
  check(room > 0, "the staging memory holds an element of every addend");
  const auto arriving = [&](const Chunk& c, int member, std::int64_t part) {
    return reinterpret_cast<float*>(staging_.arriving(c.number, member)) + part * room;
  };
  in_chunks(
      room, args.count, {},
      [&](const Chunk& c) {
        const std::size_t bytes = index(c.count) * sizeof(float);
        Messages messages;
        auto& [out, in] = messages;
        for (int d = 1; d < place_.size; ++d) {
          const int to = (place_.rank + d) % place_.size,
                    from = (place_.rank - d + place_.size) % place_.size;
          for (std::size_t part = 0; part < own.size(); ++part) {
            out.push_back({to, own[part] + to * args.count + c.start,
                           arriving(c, place_.rank, static_cast<std::int64_t>(part)), bytes});
          }
          for (int part = 0; part < args.order->parts[index(from)]; ++part) {
            in.push_back({from, arriving(c, from, part), bytes});
          }
        }
        return messages;
      },
      [&](const Chunk& c) {
        std::vector<const float*> addends;
        for (int member = 0; member < place_.size; ++member) {
          for (int part = 0; part < args.order->parts[index(member)]; ++part) {
            addends.push_back(member == place_.rank ? own[index(part)] + member * args.count + c.start
                                                    : arriving(c, member, part));
          }
        }
        ops::sum_tree(stream_, {.addends = addends,
                                .merges = args.order->merges,
                                .to = static_cast<float*>(args.to) + c.start,
                                .count = c.count});
      });
}

void Composed::gather_parts(Stream& stream, const Hierarchy& ways, std::size_t bytes,
                            const std::function<std::byte*(int)>& part, bool last) {
  const int me = place_.rank, nodes = static_cast<int>(ways.nodes.size());
  const int node = ways.node_of[index(me)];
  const std::vector<int>& node_ranks = ways.node_ranks(me);
  const auto mine = std::ranges::find(node_ranks, me) - node_ranks.begin();
  const auto peer_at = [&](std::size_t d) { return node_ranks[(index(mine) + d) % node_ranks.size()]; };
  Messages messages;
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
  exchange(stream, messages, last && nodes == 1);
  if (nodes == 1) return;
  // Forwards the parts from other nodes inside this node.
  out.clear(), in.clear();
  for (std::size_t d = 1; d < node_ranks.size(); ++d) {
    from_afar(me, [&](int charge) { out.push_back({peer_at(d), part(charge), part(charge), bytes}); });
    from_afar(peer_at(d), [&](int charge) { in.push_back({peer_at(d), part(charge), bytes}); });
  }
  exchange(stream, messages, last);
}

void Composed::all_gather(const AllGatherArgs& args) {
  if (args.bytes == 0) return;
  const Hierarchy& ways = args.hierarchical ? hierarchy_ : flat_;
  if (goes_eagerly(index(args.bytes))) return gather_eagerly(args);
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
  in_chunks_carried(
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
  in_chunks_carried(
      chunk_of(args.wire), args.count,
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
  if (goes_eagerly(index(count) * element)) return all_reduce_eagerly(how, values, count);
  const auto place = [&](const Chunk& c) {
    return static_cast<std::byte*>(values) + index(c.start) * element;
  };
  // A sum overwrites its own addend. It therefore waits until the addend is sent, as after a whole exchange.
  in_chunks_carried(
      static_cast<std::int64_t>(staging_.part / element), count, {},
      [&](Stream& stream, const Chunk& c) {
        Messages messages;
        auto& [out, in] = messages;
        for (int d = 1; d < place_.size; ++d) {
          const int to = (place_.rank + d) % place_.size,
                    from = (place_.rank - d + place_.size) % place_.size;
          out.push_back({to, place(c), staging_.arriving(c.number, place_.rank), index(c.count) * element});
          in.push_back({from, staging_.arriving(c.number, from), index(c.count) * element});
        }
        exchange(stream, messages);
      },
      [&](const Chunk& c) {
        std::vector<const void*> parts;
        for (int member = 0; member < place_.size; ++member) {
          parts.push_back(member == place_.rank ? place(c) : staging_.arriving(c.number, member));
        }
        ops::combine_parts(stream_, {.how = how, .parts = parts, .to = place(c), .count = c.count});
      });
}

}  // namespace octet::comm
