// Large host memory with all pages present: some gigabytes that a GPU reads.
#pragma once

#include <cstddef>

namespace octet {

/// Alignment and granularity of mapped memory: a huge page of x86-64, and of 64-bit ARM with 4 KiB pages.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Maps `bytes` bytes (rounded up to huge pages) of zeros, in huge pages if the system supports them. Several
/// threads touch all pages. Pinning the memory afterwards finds few large pages and takes a sixth of the time
/// that the driver needs for memory that it allocates. Returns null if the system refuses.
void* map_zeros(std::size_t bytes);

/// Unmaps memory of map_zeros(). `bytes`: the size passed to map_zeros().
void unmap_zeros(void* memory, std::size_t bytes) noexcept;

}  // namespace octet
