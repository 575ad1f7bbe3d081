// Memory that begins as zeros, also where there is much of it.
#pragma once

#include <cstddef>

namespace octet {

/// Sets `bytes` bytes to zero, on several threads where one would take a noticeable time: some gigabytes of
/// them are what a rank of a GPU gets for the copy of its state.
void zero_memory(void* memory, std::size_t bytes);

}  // namespace octet
