// Small collectives in ceil(log2 P) rounds. In a round a rank sends to one rank and receives from one rank,
// so messages and partners grow with the logarithm of the number of ranks. The results have the bits of
// direct messages, except for the sign of a maximum of 0 and -0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "messages/message_set.h"
#include "messages/transport_collectives.h"

namespace octet::comm {

/// Up to this number of ranks, messages between all ranks are as fast as rounds: strings and values, and
/// slices. Rounds of slices send more bytes, or send bytes to another node more than once.
inline constexpr int most_direct_ranks = 4;
inline constexpr int most_direct_ranks_of_slices = 16;
/// Largest collective of the data plane that is sent in rounds, in bytes of all ranks. The last round sends
/// half of these bytes over one link.
inline constexpr std::int64_t most_bytes_in_rounds = std::int64_t{1} << 18;
/// Returns true if strings or values of `bytes` bytes of all ranks are sent in rounds.
constexpr bool in_rounds(int size, std::int64_t bytes, std::int64_t most = most_bytes_in_rounds) {
  return size > most_direct_ranks && bytes <= most;
}
/// Returns true if slices of `bytes` bytes of all ranks are sent in rounds.
constexpr bool slices_in_rounds(int size, std::int64_t bytes) {
  return size > most_direct_ranks_of_slices && bytes <= most_bytes_in_rounds;
}

/// One round of every rank. Rank r holds values of itself and of the next `held` ranks, with r + 1 after r
/// and rank 0 after the last rank. It receives values of the next count() ranks from rank r + distance().
struct Round {
  int held = 0;
  bool own = false;  ///< the sender adds its own values to the values of the `held` next ranks
  int count() const { return held + (own ? 1 : 0); }
  int distance() const { return count(); }
};
/// Returns the rounds after which every rank holds the values of all ranks, each once (Bar-Noy, Kipnis,
/// Schieber, "An optimal algorithm for computing census functions in message-passing systems", 1993).
std::vector<Round> rounds_of(int size);

/// Sends every rank's slice to all ranks, in place. Slice r of `buffer` is the bytes from starts[r] to
/// starts[r + 1]; `starts` has size + 1 elements, equal on all ranks. `buffer` outlives the coroutine.
Steps gather_in_rounds_steps(Call& call, std::byte* buffer, std::vector<std::int64_t> starts);

/// Exchanges blocks of `bytes` bytes between all ranks, in place: block r is first for rank r, and in the end
/// from rank r (Bruck et al., "Efficient algorithms for all-to-all communications in multiport
/// message-passing systems", 1997). A rank forwards blocks of other ranks. `blocks` outlives the coroutine.
Steps exchange_in_rounds_steps(Call& call, std::byte* blocks, std::size_t bytes);

/// Returns `starts` for slices of equal length.
std::vector<std::int64_t> equal_slices(int size, std::int64_t bytes);

/// Returns true if these values are combined in rounds: few values of more than 16 ranks, or of more than 4
/// on one node.
bool reduces_in_rounds(const Place& place, const std::vector<ReducedValues>& values);
/// Combines values over the ranks in place. Maxima and integers are combined on the way. Doubles of all ranks
/// are sent to every rank, which adds them in rank order.
Steps all_reduce_in_rounds_steps(Call& call, std::vector<ReducedValues> values);

/// Returns true if this reduce-scatter is sent in rounds. `hierarchical`: sums are added by node.
bool reduces_in_rounds(int size, const ReduceScatterArgs& args, bool hierarchical);
/// For reduces_in_rounds(). Every rank receives all addends of its slice and adds them in the same order as
/// reduce_scatter_steps() or hierarchical_reduce_scatter_steps().
Steps reduce_scatter_in_rounds_steps(Call& call, ReduceScatterArgs args, bool hierarchical);

}  // namespace octet::comm
