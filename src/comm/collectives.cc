#include "collectives.h"

#include <algorithm>
#include <array>
#include <vector>

#include "octet/ops/wire.h"

namespace octet::comm {
namespace {

// Rank r begins with its right neighbour, so that at no time all ranks send to the same one.
int to_peer(const Place& place, int distance) {
  return (place.rank + distance) % place.size;
}
int from_peer(const Place& place, int distance) {
  return (place.rank - distance + place.size) % place.size;
}

// Every rank's values are sent to all ranks, which combine them alike.
template <typename T>
Steps all_reduce_steps(Call& call, Staging staging, T* values, std::int64_t count, ops::Combine how) {
  const Place& place = call.place();
  if (place.size == 1) co_return;
  const std::int64_t chunk = static_cast<std::int64_t>(staging.arrive_bytes / sizeof(T));
  Messages messages(call);
  std::vector<const void*> parts(place.size);
  for (std::int64_t start = 0; start < count; start += chunk) {
    const std::int64_t n = std::min(chunk, count - start);
    for (int d = 1; d < place.size; ++d) {
      const int peer = from_peer(place, d);
      parts[peer] = staging.arriving(0, peer);
      messages.receive(peer, staging.arriving(0, peer), n * sizeof(T));
    }
    for (int d = 1; d < place.size; ++d) messages.send(to_peer(place, d), values + start, n * sizeof(T));
    while (!messages.complete()) co_await pause;
    parts[place.rank] = values + start;
    ops::combine_parts({.how = how, .parts = parts, .to = values + start, .count = n});
  }
}

void post(Messages& messages, const Place& place, const Staging& staging, const ReduceScatterArgs& args,
          const Chunk& chunk) {
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

void sum(const Place& place, const Staging& staging, const ReduceScatterArgs& args, const Chunk& chunk) {
  const std::byte* own = read_at(args, place.rank * args.count + chunk.start);
  std::vector<const void*> parts(place.size);
  for (int r = 0; r < place.size; ++r) parts[r] = staging.arriving(chunk.set, r);
  parts[place.rank] = own;
  if (!ops::travels_as_it_lies(args.wire, args.from_dtype)) {
    // The own part is rounded like those that travelled, so that the sum does not depend on who owns it.
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
  // Two blocks at least, so that staging of many ranks holds what a sum by nodes needs of it.
  return std::max(chunk, 2 * ops::kWireBlock);
}

Steps reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args) {
  args.wire = ops::wire_of_values(args.wire, args.from_dtype);
  if (call.place().size == 1) return sum_alone(args);
  return in_chunks(
      call, staging.chunk, args.count,
      [&call, staging, args](Messages& messages, const Chunk& chunk) {
        post(messages, call.place(), staging, args, chunk);
      },
      [&call, staging, args](const Chunk& chunk) { sum(call.place(), staging, args, chunk); });
}

Steps all_reduce_max_steps(Call& call, Staging staging, float* values, std::int64_t count) {
  return all_reduce_steps(call, staging, values, count, ops::Combine::max_f32);
}

Steps all_reduce_sum_steps(Call& call, Staging staging, std::int64_t* values, std::int64_t count) {
  return all_reduce_steps(call, staging, values, count, ops::Combine::sum_i64);
}

Steps all_reduce_sum_steps(Call& call, Staging staging, double* values, std::int64_t count) {
  return all_reduce_steps(call, staging, values, count, ops::Combine::sum_f64);
}

}  // namespace octet::comm
