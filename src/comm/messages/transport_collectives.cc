#include "messages/transport_collectives.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>
#include <vector>

#include "messages/rounds.h"
#include "octet/base/error.h"
#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

// Rank r starts with its right neighbour, so the ranks never all send to the same rank at once.
int to_peer(const Place& place, int distance) {
  return (place.rank + distance) % place.size;
}
int from_peer(const Place& place, int distance) {
  return (place.rank - distance + place.size) % place.size;
}

/// Elements of this rank's addends, as they are sent to a rank.
class OwnAddends {
 public:
  OwnAddends(const Staging& staging, const ReduceScatterArgs& args, const Chunk& chunk)
      : staging_(staging), args_(args), chunk_(chunk), all_(own_addends(args)) {}

  std::size_t count() const { return all_.size(); }
  /// Returns the bytes of one encoded addend.
  std::size_t bytes() const { return ops::wire_bytes(args_.wire, chunk_.count); }
  bool encodes() const { return !ops::travels_as_it_lies(args_.wire, args_.from_dtype); }
  /// Returns the address of an addend for `rank`. encode() must have been called if encodes().
  const std::byte* at(std::size_t addend, int rank) const {
    return encodes() ? encoded(addend, rank) : values(addend, rank);
  }
  void encode(std::size_t addend, int rank) const {
    ops::encode_values({.wire = args_.wire,
                        .from = values(addend, rank),
                        .dtype = args_.from_dtype,
                        .count = chunk_.count,
                        .to = encoded(addend, rank),
                        .residual = residual_at(args_, rank * args_.count + chunk_.start)});
  }
  /// Returns the address at which an addend of another rank arrives.
  std::byte* arriving(std::size_t addend, int rank) const {
    return staging_.arriving(chunk_.set, rank) + addend * addend_pitch(bytes());
  }

 private:
  const std::byte* values(std::size_t addend, int rank) const {
    return all_[addend] +
           static_cast<std::size_t>(rank * args_.count + chunk_.start) * size_of(args_.from_dtype);
  }
  std::byte* encoded(std::size_t addend, int rank) const {
    return staging_.leaving(chunk_.set, rank) + addend * addend_pitch(bytes());
  }

  const Staging& staging_;
  const ReduceScatterArgs& args_;
  const Chunk& chunk_;
  std::vector<const std::byte*> all_;
};

void post_slices(Messages& messages, const Place& place, const Staging& staging,
                 const ReduceScatterArgs& args, const Chunk& chunk) {
  const OwnAddends own(staging, args, chunk);
  for (int d = 1; d < place.size; ++d) {
    const int peer = from_peer(place, d);
    for (std::size_t i = 0; i < own.count(); ++i) messages.receive(peer, own.arriving(i, peer), own.bytes());
  }
  for (int d = 1; d < place.size; ++d) {
    const int peer = to_peer(place, d);
    for (std::size_t i = 0; i < own.count(); ++i) {
      if (own.encodes()) own.encode(i, peer);
      messages.send(peer, own.at(i, peer), own.bytes());
    }
  }
}

void sum_slices(const Place& place, const Staging& staging, const ReduceScatterArgs& args,
                const Chunk& chunk) {
  const OwnAddends own(staging, args, chunk);
  std::vector<const void*> parts;
  for (int r = 0; r < place.size; ++r) {
    for (std::size_t i = 0; i < own.count(); ++i) {
      // The own part is rounded like received parts, so the sum does not depend on the owner.
      if (r == place.rank && own.encodes()) own.encode(i, r);
      parts.push_back(r == place.rank ? own.at(i, r) : own.arriving(i, r));
    }
  }
  ops::sum_parts({.wire = args.wire,
                  .parts = parts,
                  .to = write_at(args, chunk.start),
                  .to_dtype = args.to_dtype,
                  .count = chunk.count,
                  .accumulate = args.accumulate});
}

/// The part of some values that is sent in one round.
struct ReducedPiece {
  ops::Combine how{};
  std::byte* values = nullptr;
  std::int64_t count = 0;
  std::size_t bytes = 0;
  std::size_t at = 0;  ///< offset in the slice of a rank
};

std::vector<std::vector<ReducedPiece>> pieces_that_fit(const std::vector<ReducedValues>& values,
                                                       std::size_t room) {
  std::vector<std::vector<ReducedPiece>> rounds(1);
  std::size_t filled = 0;
  for (const ReducedValues& all : values) {
    const std::size_t element = ops::element_bytes(all.how);
    for (std::int64_t start = 0; start < all.count;) {
      if (filled + element > room) {
        rounds.emplace_back();
        filled = 0;
      }
      const auto fits = static_cast<std::int64_t>((room - filled) / element);
      ReducedPiece piece{.how = all.how, .count = std::min(all.count - start, fits), .at = filled};
      piece.values = static_cast<std::byte*>(all.values) + static_cast<std::size_t>(start) * element;
      piece.bytes = static_cast<std::size_t>(piece.count) * element;
      filled += piece.bytes;
      start += piece.count;
      rounds.back().push_back(piece);
    }
  }
  return rounds;
}

Steps sum_alone(ReduceScatterArgs args) {
  std::vector<const void*> own = args.earlier;
  own.push_back(args.from);
  if (args.to != args.from || args.accumulate || own.size() > 1) {
    ops::sum_parts({.wire = ops::wire_of_values(Wire::f32, args.from_dtype),
                    .parts = own,
                    .to = args.to,
                    .to_dtype = args.to_dtype,
                    .count = args.count,
                    .accumulate = args.accumulate});
  }
  co_return;
}

}  // namespace

std::int64_t chunk_for(std::int64_t room, std::size_t addends) {
  if (addends == 1) return room;
  const std::int64_t chunk = room / static_cast<std::int64_t>(addends) / ops::kWireBlock * ops::kWireBlock;
  check(chunk > 0, "the staging memory holds a block of every addend");
  return chunk;
}

Steps reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args) {
  args.wire = ops::wire_of_values(args.wire, args.from_dtype);
  if (call.place().size == 1) return sum_alone(args);
  return in_chunks(
      call, chunk_for(staging.chunk, args.earlier.size() + 1), args.count,
      [&call, staging, args](Messages& messages, const Chunk& chunk) {
        post_slices(messages, call.place(), staging, args, chunk);
      },
      [&call, staging, args](const Chunk& chunk) { sum_slices(call.place(), staging, args, chunk); });
}

// Every rank's values are sent to all ranks, which combine them alike, in rank order. A round contains as
// many values of every rank as the staging memory holds. Few values are sent in rounds instead.
Steps all_reduce_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                       std::vector<ReducedValues> values) {
  const Place& place = call.place();
  if (place.size == 1) co_return;
  if (reduces_in_rounds(place, values)) {
    Steps small = all_reduce_in_rounds_steps(call, std::move(values));
    while (!small.resume()) co_await pause;
    co_return;
  }
  for (const std::vector<ReducedPiece>& round : pieces_that_fit(values, staging.arrive_bytes)) {
    std::size_t bytes = 0;
    for (const ReducedPiece& piece : round) bytes += piece.bytes;
    const auto slice = [&](int rank) { return staging.arrive + static_cast<std::size_t>(rank) * bytes; };
    for (const ReducedPiece& piece : round)
      std::memcpy(slice(place.rank) + piece.at, piece.values, piece.bytes);
    Steps gather = all_gather_steps(call, hierarchy,
                                    {.buffer = staging.arrive, .bytes = static_cast<std::int64_t>(bytes)});
    while (!gather.resume()) co_await pause;
    std::vector<const void*> parts(static_cast<std::size_t>(place.size));
    for (const ReducedPiece& piece : round) {
      for (int r = 0; r < place.size; ++r) parts[static_cast<std::size_t>(r)] = slice(r) + piece.at;
      ops::combine_parts({.how = piece.how, .parts = parts, .to = piece.values, .count = piece.count});
    }
  }
}

void Collectives::sum_directly(Stream&, const DirectSumArgs&) {
  check(false, "direct sums are used only if sums_directly() is true");
}

}  // namespace octet::comm
