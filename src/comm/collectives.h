// The collectives of the data plane, over any transport. All ranks talk to all others directly: each byte
// crosses once, and a sum's order is the rank order, not that of arrival.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "chunks.h"
#include "hierarchy.h"
#include "messages.h"
#include "octet/ops/wire.h"
#include "steps.h"

namespace octet::comm {

/// Memory in which parts arrive before they are summed, in several sets, so that the messages of some chunks
/// travel while the one before is summed. One per queue, reserved once.
struct Staging {
  std::int64_t chunk = 0;        ///< fp32 elements of one part
  std::byte* arrive = nullptr;   ///< [sets, size, arrive_bytes]
  std::byte* leave = nullptr;    ///< [sets, size, leave_bytes]
  std::size_t arrive_bytes = 0;  ///< chunk as fp32
  std::size_t leave_bytes = 0;   ///< chunk in the widest encoded format
  int size = 0;

  std::size_t bytes() const {
    return static_cast<std::size_t>(staging_sets) * static_cast<std::size_t>(size) *
           (arrive_bytes + leave_bytes);
  }
  std::byte* arriving(int set, int rank) const { return arrive + (set * size + rank) * arrive_bytes; }
  std::byte* leaving(int set, int rank) const { return leave + (set * size + rank) * leave_bytes; }
};

/// Chunk length for `size` ranks when all parts of one set may take `elements` fp32 elements together.
std::int64_t staging_chunk(int size, std::int64_t elements);

/// Element `i` of what a reduction reads, or writes.
inline const std::byte* read_at(const ReduceScatterArgs& args, std::int64_t i) {
  return static_cast<const std::byte*>(args.from) + i * static_cast<std::int64_t>(size_of(args.from_dtype));
}
inline std::byte* write_at(const ReduceScatterArgs& args, std::int64_t i) {
  return static_cast<std::byte*>(args.to) + i * static_cast<std::int64_t>(size_of(args.to_dtype));
}
/// What encoding of element `i` of `from` and those behind it lost so far; null: nobody asks.
inline std::uint16_t* residual_at(const ReduceScatterArgs& args, std::int64_t i) {
  return args.residual == nullptr ? nullptr : args.residual + i;
}

// `call`, the hierarchy and the buffers outlive the coroutine.
Steps reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args);
/// With args.order. A rank's addends travel one behind the other, in chunks that fit the staging together.
Steps ordered_reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args);
/// Throws std::logic_error for an order that does not fit the ranks or leaves more or less than one sum.
void check_order(const ReduceScatterArgs& args, const Place& place);
/// Every node adds up its ranks' values in rank order, in fp32; then the nodes' sums, in the format of the
/// wire, are added in the order of the nodes. Of several nodes.
Steps reduce_scatter_by_node_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                                   ReduceScatterArgs args);
/// To the mates of one's node directly, to other nodes once each. With one_node(): to all directly.
Steps all_gather_steps(Call& call, const Hierarchy& hierarchy, AllGatherArgs args);
Steps all_gather_values_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                              AllGatherValuesArgs args);
Steps all_to_all_steps(Call& call, AllToAllArgs args);
/// A message to another rank, one from another, or both; one of no bytes is none.
Steps pass_steps(Call& call, SendArgs out, ReceiveArgs in);
/// Values that are combined over ranks in place.
struct ReducedValues {
  ops::Combine how{};
  void* values = nullptr;
  std::int64_t count = 0;
};
/// Those that come first have the longer elements. They go to other nodes as those of a gather do.
Steps all_reduce_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                       std::vector<ReducedValues> values);

}  // namespace octet::comm
