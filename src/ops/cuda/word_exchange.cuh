// Words of memory in which blocks of a kernel hand each other values (octet::cuda::exchange()): each is there
// as soon as its bits are not those of kNothing, and needs no fence and no mark behind it.
#pragma once

#include <cuda_runtime.h>

namespace octet::ops::cuda {

/// All bits set: nothing is there yet. Who leaves a value gives it other bits.
inline constexpr unsigned kNothing = 0xFFFFFFFFu;

__device__ inline unsigned look_at(const unsigned* from) {
  unsigned x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
__device__ inline void leave(unsigned* to, unsigned x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
/// Four words, on a 16-byte boundary, each of which may be there before the others.
__device__ inline uint4 look_at_quad(const uint4* from) {
  uint4 x;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ inline void leave_quad(uint4* to, const uint4& x) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ inline bool there(const uint4& x) {
  return x.x != kNothing && x.y != kNothing && x.z != kNothing && x.w != kNothing;
}
/// A sum as a word: of what is no number, other bits than kNothing.
__device__ inline unsigned word_of_sum(float sum) {
  const unsigned word = __float_as_uint(sum);
  return word < kNothing ? word : kNothing - 1;
}
__device__ inline uint4 nothing_quad() {
  return make_uint4(kNothing, kNothing, kNothing, kNothing);
}

}  // namespace octet::ops::cuda
