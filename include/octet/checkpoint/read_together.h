// Reading a checkpoint from all ranks.
#pragma once

#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/comm/channel.h"

namespace octet::checkpoint {

/// Fills the slices of every rank, as Checkpoint::read does. Where all ranks of several hosts ask for the
/// same (parameters and moments of ZeRO-0), each reads and verifies a share and hands it to the others, so
/// that the file system gives every byte once; else each reads its own. On one host that is faster: its page
/// cache has the bytes after the first rank. Beside the slices a rank holds some 32 MiB meanwhile.
///
/// Collective. Throws Error on all ranks (Channel::together), with `no_valid_checkpoint` for whatever is
/// wrong with the bytes, and `usage` for slices that do not fit the checkpoint.
void read_together(comm::Channel& channel, const Checkpoint& checkpoint,
                   const std::vector<TensorSlice>& slices);

}  // namespace octet::checkpoint
