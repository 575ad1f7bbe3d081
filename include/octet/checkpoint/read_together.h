// Collective reading of a checkpoint.
#pragma once

#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/comm/channel.h"

namespace octet::checkpoint {

/// Fills the slices of every rank like Checkpoint::read. All ranks of several hosts may need the same slices
/// (parameters and moments of ZeRO-0). Each rank then reads and verifies a share and sends it to the others,
/// so the file system serves every byte once. Otherwise each rank reads its own slices. On one host this is
/// faster, because the bytes are in the page cache after the first rank. A rank needs about 32 MiB of
/// additional memory.
///
/// Collective. Throws Error on all ranks (Channel::together): `no_valid_checkpoint` for damaged bytes,
/// `usage` for slices that do not fit the checkpoint.
void read_together(comm::Channel& channel, const Checkpoint& checkpoint,
                   const std::vector<TensorSlice>& slices);

}  // namespace octet::checkpoint
