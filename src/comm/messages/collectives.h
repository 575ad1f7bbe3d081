// The collectives of the data plane, over any transport. Every rank sends to every other rank directly, so
// each byte crosses the network once. Sums use rank order, not order of arrival.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "messages/chunks.h"
#include "messages/hierarchy.h"
#include "messages/messages.h"
#include "messages/steps.h"
#include "octet/ops/wire.h"

namespace octet::comm {

/// Memory for parts that arrive before they are summed. It has several sets, so messages of some chunks are
/// in flight while an earlier chunk is summed. One per queue, reserved once.
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

/// Address of element `i` that a reduction reads or writes.
inline const std::byte* read_at(const ReduceScatterArgs& args, std::int64_t i) {
  return static_cast<const std::byte*>(args.from) + i * static_cast<std::int64_t>(size_of(args.from_dtype));
}
inline std::byte* write_at(const ReduceScatterArgs& args, std::int64_t i) {
  return static_cast<std::byte*>(args.to) + i * static_cast<std::int64_t>(size_of(args.to_dtype));
}
/// Address of the residual of element `i` of `from` and later elements; null: no residual is kept.
inline std::uint16_t* residual_at(const ReduceScatterArgs& args, std::int64_t i) {
  return args.residual == nullptr ? nullptr : args.residual + i;
}

// `call`, the hierarchy and the buffers must outlive the coroutine.
Steps reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args);
/// For args.order. The addends of a rank are sent one after the other, in chunks that fit the staging
/// together.
Steps ordered_reduce_scatter_steps(Call& call, Staging staging, ReduceScatterArgs args);
/// Throws std::logic_error if the order does not fit the ranks or does not leave exactly one sum.
void check_order(const ReduceScatterArgs& args, const Place& place);
/// For several nodes. Every node adds the values of its ranks in rank order, in fp32. Then the node sums,
/// sent in the wire format, are added in node order.
Steps hierarchical_reduce_scatter_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                                        ReduceScatterArgs args);
/// Sends to the ranks of the same node directly and to each other node once. With one_node(): to all
/// directly.
Steps all_gather_steps(Call& call, const Hierarchy& hierarchy, AllGatherArgs args);
Steps all_gather_values_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                              AllGatherValuesArgs args);
Steps all_to_all_steps(Call& call, AllToAllArgs args);
/// Sends a message to another rank, receives one, or both. A message of zero bytes is skipped.
Steps pass_steps(Call& call, SendArgs out, ReceiveArgs in);
/// Values that are combined over ranks in place.
struct ReducedValues {
  ops::Combine how{};
  void* values = nullptr;
  std::int64_t count = 0;
};
/// Values with longer elements come first. They are sent to other nodes as in a gather.
Steps all_reduce_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                       std::vector<ReducedValues> values);

}  // namespace octet::comm
