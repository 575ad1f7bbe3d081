#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/comm/channel.h"
#include "octet/data/encoded.h"

namespace octet::feed {

struct GatherLimits {
  std::size_t in_memory = LongArray<std::byte>::kInMemory;  ///< bytes of a list; longer ones lie in files
  /// Of what all ranks together send at a time: no message has to hold a whole data set.
  std::int64_t message_bytes = INT64_C(64) << 20;
};

/// Every rank's part, in rank order, on every rank; a collective. Long lists lie in files below TMPDIR, one
/// for the ranks of a node: the lowest of them writes it and the others read it there, or keep one of their
/// own where they do not reach it. Throws Error on all ranks when a disk is full.
data::Encoded gather_parts(comm::Channel& channel, data::Encoded own, const GatherLimits& limits = {});

}  // namespace octet::feed
