// How much ranks send, and how long it takes.
#pragma once

#include <cstdint>
#include <string>

#include "octet/comm/channel.h"

namespace octet::comm {

/// Bytes and times of the collectives of one kind since the counters were last taken.
struct Traffic {
  std::string kind;  ///< "reduce_scatter", "all_gather", …; "control" for what channels carry
  std::int64_t calls = 0;
  std::int64_t bytes_sent = 0;           ///< by this rank, counted where they are handed to the transport
  std::int64_t bytes_between_nodes = 0;  ///< of these, to ranks of other nodes
  /// From first message posted to last one complete; on GPUs by timed events around each collective.
  double seconds = 0;
};

/// Bytes that one rank sends, for plans: what Traffic counts.
struct Sent {
  std::int64_t bytes = 0;
  std::int64_t between_nodes = 0;  ///< of these, to ranks of other nodes
  Sent& operator+=(const Sent& more) {
    bytes += more.bytes, between_nodes += more.between_nodes;
    return *this;
  }
  /// So many of these.
  Sent operator*(std::int64_t times) const { return {bytes * times, between_nodes * times}; }
};
/// In a gather of slices of that many bytes by the rank at `place`: to every other rank, or by nodes.
Sent sent_by_gather(const Place& place, std::int64_t slice, bool by_node);
/// In a reduction of slices that take `wire` bytes as they travel between nodes, or everywhere without
/// `by_node`, and `inside` bytes in the full precision in which they travel inside a node with it.
Sent sent_by_reduction(const Place& place, std::int64_t wire, std::int64_t inside, bool by_node);

}  // namespace octet::comm
