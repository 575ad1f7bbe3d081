#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/comm/channel.h"
#include "octet/data/encoded.h"

namespace octet::feed {

struct GatherLimits {
  std::size_t in_memory =
      LongArray<std::byte>::kInMemory;  ///< largest list in memory, in bytes; longer lists are in files
  /// Limit of the bytes that all ranks together send at a time, so that no message holds a whole data set.
  std::int64_t message_bytes = INT64_C(64) << 20;
};

/// Collective: returns the parts of all ranks, in rank order, on every rank. Long lists are in files below
/// TMPDIR, one per node: the lowest rank of the node writes the file and the others read it. A rank that
/// cannot read it writes a separate file. Throws Error on all ranks when a disk is full.
data::Encoded gather_parts(comm::Channel& channel, data::Encoded own, const GatherLimits& limits = {});

}  // namespace octet::feed
