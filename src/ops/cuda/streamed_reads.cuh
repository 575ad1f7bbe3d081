// Reads of GEMMs that are bound by the bytes of their weight.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace octet::ops::cuda {

/// Reads 16 bytes of a weight that are not read again.
__device__ inline uint4 read_once(const std::uint8_t* from) {
  uint4 x;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}
/// Reads 16 bytes that other blocks also read. Does not use the read-only cache, because the kernel that
/// wrote them may still have been running when this kernel began.
__device__ inline uint4 read_often(const std::uint8_t* from) {
  uint4 x;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}

}  // namespace octet::ops::cuda
