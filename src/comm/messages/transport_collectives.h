#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "messages/hierarchy.h"
#include "messages/message_set.h"
#include "octet/ops/wire.h"

namespace octet::comm {

// Pipelined collectives: a slice is split into chunks, and messages of later chunks are in flight while one
// is summed.

/// Number of chunks in flight. A long message waits for a handshake from its receiver, which queues after
/// other messages on a slow link. With two chunks the link is sometimes idle, with four it is not.
inline constexpr int staging_sets = 4;

/// Messages of the chunks in flight; [i] belongs to chunk i.
class MessageSets {
 public:
  explicit MessageSets(Call& call) : sets_{Messages(call), Messages(call), Messages(call), Messages(call)} {}
  Messages& operator[](std::int64_t chunk) { return sets_[static_cast<std::size_t>(chunk % staging_sets)]; }

 private:
  std::array<Messages, staging_sets> sets_;
};

/// Elements [start, start + count) of a slice, and the staging set that they use.
struct Chunk {
  std::int64_t start = 0;
  std::int64_t count = 0;
  int set = 0;
};

/// Processes `count` elements in chunks of `length`. post(messages, chunk) starts a chunk's messages.
/// sum(chunk) is called in order, when the messages are complete. Objects that both functions refer to must
/// outlive the coroutine.
template <typename Post, typename Sum>
Steps in_chunks(Call& call, std::int64_t length, std::int64_t count, Post post, Sum sum) {
  const auto chunk_at = [&](std::int64_t index) {
    const std::int64_t start = index * length;
    return Chunk{start, std::min(length, count - start), static_cast<int>(index % staging_sets)};
  };
  const std::int64_t chunks = (count + length - 1) / length;
  MessageSets messages(call);
  for (std::int64_t c = 0, next = 0; c < chunks; ++c) {
    for (; next < std::min(c + staging_sets, chunks); ++next) post(messages[next], chunk_at(next));
    while (!messages[c].complete()) co_await pause;
    sum(chunk_at(c));
  }
}

// The collectives of the data plane, over any transport. Every rank sends to every other rank directly, so
// each byte crosses the network once. Small collectives are sent in rounds (rounds.h). Sums use rank order,
// not order of arrival.

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
  /// Sets the memory of bytes() bytes. Null: the memory is only planned.
  void take(std::byte* memory);
  std::byte* arriving(int set, int rank) const { return arrive + (set * size + rank) * arrive_bytes; }
  std::byte* leaving(int set, int rank) const { return leave + (set * size + rank) * leave_bytes; }
};

/// Returns the staging of the reduce queue and of the gather queue of `size` ranks, without memory. Parts get
/// shorter with more ranks, but messages of a reduction never get short. So staging grows with many ranks.
Staging reduce_staging(int size);
Staging gather_staging(int size);

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

/// This rank's addends, `from` last.
inline std::vector<const std::byte*> own_addends(const ReduceScatterArgs& args) {
  std::vector<const std::byte*> own;
  for (const void* addend : args.earlier) own.push_back(static_cast<const std::byte*>(addend));
  own.push_back(static_cast<const std::byte*>(args.from));
  return own;
}
/// Returns the bytes from an encoded addend of `bytes` bytes to the next one. Factors of block formats are
/// aligned.
inline std::size_t addend_pitch(std::size_t bytes) {
  return (bytes + 3) / 4 * 4;
}
/// Returns the elements of a chunk if staging for `room` elements must hold that many of each of `addends`.
std::int64_t chunk_for(std::int64_t room, std::size_t addends);

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
/// Chooses among these and reduce_scatter_in_rounds_steps() by the arguments and the size.
Steps chosen_reduce_scatter_steps(Call& call, Staging staging, const Hierarchy& hierarchy,
                                  ReduceScatterArgs args);
/// Sends to the ranks of the same node directly and to each other node once. With one_node(): to all
/// directly.
Steps all_gather_steps(Call& call, const Hierarchy& hierarchy, AllGatherArgs args);
/// Returns true if all slices of a node are sent to another node in one message: many nodes with consecutive
/// ranks and short slices.
bool gathers_whole_nodes(const Hierarchy& hierarchy, std::int64_t slice);
/// For gathers_whole_nodes(). Two nodes exchange through one rank of each, which forwards inside its node.
Steps gather_whole_nodes_steps(Call& call, const Hierarchy& hierarchy, AllGatherArgs args);
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

// Collectives of the control plane: byte strings of any length. Few ranks send to each other directly. Other
// ranks send along a tree or in rounds (rounds.h). Strings of all ranks of more than 16 MiB are sent
// directly.

/// Sends *bytes of `root` to all ranks. `bytes` outlives the coroutine.
Steps broadcast_steps(Call& call, std::string* bytes, int root);

/// Gathers every rank's bytes on every rank, by rank, in *all. `all` outlives the coroutine.
Steps all_gather_bytes_steps(Call& call, std::string mine, std::vector<std::string>* all);

}  // namespace octet::comm
