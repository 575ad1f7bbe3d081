// Words of memory for the exchange of values between blocks of a kernel (octet::cuda::exchange()). A word is
// valid as soon as it differs from kNothing, so no fence and no flag is needed.
#pragma once

#include <cuda_runtime.h>

namespace octet::ops::cuda {

/// All bits set: the word is empty. Writers must convert such a value to other bits.
inline constexpr unsigned kNothing = 0xFFFFFFFFu;

__device__ inline unsigned look_at(const unsigned* from) {
  unsigned x;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
  return x;
}
__device__ inline void leave(unsigned* to, unsigned x) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(x) : "memory");
}
/// Reads four words, aligned to 16 bytes. Each word may become valid before the others.
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
/// Converts a sum to a word. A NaN never becomes kNothing.
__device__ inline unsigned word_of_sum(float sum) {
  const unsigned word = __float_as_uint(sum);
  return word < kNothing ? word : kNothing - 1;
}
__device__ inline uint4 nothing_quad() {
  return make_uint4(kNothing, kNothing, kNothing, kNothing);
}

}  // namespace octet::ops::cuda
