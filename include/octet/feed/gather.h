#pragma once

#include <cstddef>

#include "octet/comm/channel.h"
#include "octet/data/encoded.h"

namespace octet::feed {

/// Every rank's part, in rank order, on every rank; a collective. Lists of more than `in_memory` bytes lie in
/// files below TMPDIR, one for the ranks of a node: the lowest of them writes it and the others read it
/// there, or keep one of their own where they do not reach it. Throws Error on all ranks when a disk is full.
data::Encoded gather_parts(comm::Channel& channel, data::Encoded own,
                           std::size_t in_memory = LongArray<std::byte>::kInMemory);

}  // namespace octet::feed
