// How much ranks send, and how long it takes.
#pragma once

#include <cstdint>
#include <string>

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

}  // namespace octet::comm
