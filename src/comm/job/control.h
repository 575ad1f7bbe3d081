// Collectives of the control plane: byte strings of any length, sent directly between the ranks that need
// them, so that each waiting rank knows which rank it waits for.
#pragma once

#include <string>
#include <vector>

#include "messages/message_set.h"

namespace octet::comm {

/// *bytes of `root` to all ranks. `bytes` outlives the coroutine.
Steps broadcast_steps(Call& call, std::string* bytes, int root);

/// Every rank's bytes on every rank, by rank, in *all. `all` outlives the coroutine.
Steps all_gather_bytes_steps(Call& call, std::string mine, std::vector<std::string>* all);

}  // namespace octet::comm
