// Large host memory of zeros in huge pages.
#pragma once

#include <cstddef>

namespace octet {

/// Alignment and granularity of mapped memory: a huge page of x86-64, and of 64-bit ARM with 4 KiB pages.
inline constexpr std::size_t kHugePage = std::size_t{2} << 20;

/// Maps `bytes` bytes (rounded up to huge pages) of zeros, in huge pages if the system supports them. Several
/// threads touch all pages. Pinning the memory afterwards finds few large pages and takes a sixth of the time
/// that the driver needs for memory that it allocates. Returns null if the system refuses.
void* map_zeros(std::size_t bytes);

/// Like map_zeros(), but the system makes each page when it is first used. Memory that nobody uses costs
/// nothing.
void* map_zeros_on_demand(std::size_t bytes);

/// Unmaps memory of either function. `bytes`: the size that was passed to it.
void unmap_zeros(void* memory, std::size_t bytes) noexcept;

}  // namespace octet
