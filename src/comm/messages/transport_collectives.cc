#include "messages/transport_collectives.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

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

void post_slices(Messages& messages, const Place& place, const Staging& staging,
                 const ReduceScatterArgs& args, const Chunk& chunk) {
  const std::size_t bytes = ops::wire_bytes(args.wire, chunk.count);
  for (int d = 1; d < place.size; ++d) {
    const int peer = from_peer(place, d);
    messages.receive(peer, staging.arriving(chunk.set, peer), bytes);
  }
  for (int d = 1; d < place.size; ++d) {
    const int peer = to_peer(place, d);
    const std::byte* slice = read_at(args, peer * args.count + chunk.start);
    if (ops::travels_as_it_lies(args.wire, args.from_dtype)) {
      messages.send(peer, slice, bytes);
    } else {
      ops::encode_values({.wire = args.wire,
                          .from = slice,
                          .dtype = args.from_dtype,
                          .count = chunk.count,
                          .to = staging.leaving(chunk.set, peer),
                          .residual = residual_at(args, peer * args.count + chunk.start)});
      messages.send(peer, staging.leaving(chunk.set, peer), bytes);
    }
  }
}

void sum_slices(const Place& place, const Staging& staging, const ReduceScatterArgs& args,
                const Chunk& chunk) {
  const std::byte* own = read_at(args, place.rank * args.count + chunk.start);
  std::vector<const void*> parts(place.size);
  for (int r = 0; r < place.size; ++r) parts[r] = staging.arriving(chunk.set, r);
  parts[place.rank] = own;
  if (!ops::travels_as_it_lies(args.wire, args.from_dtype)) {
    // The own part is rounded like received parts, so the sum does not depend on the owner.
    std::byte* encoded = staging.leaving(chunk.set, place.rank);
    ops::encode_values({.wire = args.wire,
                        .from = own,
                        .dtype = args.from_dtype,
                        .count = chunk.count,
                        .to = encoded,
                        .residual = residual_at(args, place.rank * args.count + chunk.start)});
    parts[place.rank] = encoded;
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

std::vector<std::vector<ReducedPiece>> rounds_of(const std::vector<ReducedValues>& values, std::size_t room) {
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
  const std::array<const void*, 1> own = {args.from};
  if (args.to != args.from || args.accumulate) {
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

std::int64_t staging_chunk(int size, std::int64_t elements) {
  const std::int64_t chunk = elements / size / ops::kWireBlock * ops::kWireBlock;
  // At least two blocks, so that staging memory of many ranks suffices for a sum by node.
  return std::max(chunk, 2 * ops::kWireBlock);
}

Steps reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args) {
  args.wire = ops::wire_of_values(args.wire, args.from_dtype);
  if (call.place().size == 1) return sum_alone(args);
  return in_chunks(
      call, staging.chunk, args.count,
      [&call, staging, args](Messages& messages, const Chunk& chunk) {
        post_slices(messages, call.place(), staging, args, chunk);
      },
      [&call, staging, args](const Chunk& chunk) { sum_slices(call.place(), staging, args, chunk); });
}

// Every rank's values are sent to all ranks, which combine them alike, in rank order. A round contains as
// many values of every rank as the staging memory holds.
Steps all_reduce_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                       std::vector<ReducedValues> values) {
  const Place& place = call.place();
  if (place.size == 1) co_return;
  for (const std::vector<ReducedPiece>& round : rounds_of(values, staging.arrive_bytes)) {
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
