// Amount and duration of the ranks' communication.
#pragma once

#include <cstdint>
#include <string>

#include "octet/comm/channel.h"

namespace octet::comm {

/// Bytes and times of the collectives of one kind since the counters were last taken.
struct Traffic {
  std::string kind;  ///< "reduce_scatter", "all_gather", …; "control" for what channels carry
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;           ///< by this rank, counted when handed to the transport
  std::int64_t bytes_between_nodes = 0;  ///< of these, to ranks of other nodes
  /// From the first message posted to the last one complete; on GPUs by timed events around each collective.
  double seconds = 0;
};

/// Bytes that one rank sends, for plans. Counts like Traffic.
struct Sent {
  std::int64_t bytes = 0;
  std::int64_t between_nodes = 0;  ///< of these, to ranks of other nodes
  Sent& operator+=(const Sent& more) {
    bytes += more.bytes, between_nodes += more.between_nodes;
    return *this;
  }
  /// Returns the bytes of `times` such transfers.
  Sent operator*(std::int64_t times) const { return {bytes * times, between_nodes * times}; }
};
/// Returns the bytes that the rank at `place` sends in a gather of slices of `slice` bytes.
Sent sent_by_gather(const Place& place, std::int64_t slice, bool hierarchical);
/// Returns the bytes that the rank sends in a reduction of slices. A slice takes `wire` bytes between nodes,
/// or everywhere without `hierarchical`. With `hierarchical`, it takes `inside` bytes, in full precision,
/// inside a node.
Sent sent_by_reduction(const Place& place, std::int64_t wire, std::int64_t inside, bool hierarchical);

}  // namespace octet::comm
