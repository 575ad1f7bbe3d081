// Much host memory at once, all of it there: some gigabytes that a GPU is to read.
#pragma once

#include <cstddef>

namespace octet {

/// What mapped memory begins at a multiple of, and is a multiple of: a huge page of x86-64 and of 64-bit ARM
/// with small pages of 4 KiB.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Maps `bytes` bytes (rounded up to huge pages) of zeros, in huge pages where the system has them, and
/// brings all of them to memory on several threads: what fixes them in memory afterwards finds few and large
/// pages, and needs a sixth of the time that the driver takes for memory of its own. Null where the system
/// refuses.
void* map_zeros(std::size_t bytes);

/// Gives back what map_zeros() gave for so many bytes.
void unmap_zeros(void* memory, std::size_t bytes) noexcept;

}  // namespace octet
