// Wrappers of instructions without a C++ name: tensor cores, loads of matrices in their layout, and
// asynchronous copies to shared memory.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

namespace octet::ops::cuda {

/// Returns the dynamic shared memory of the block.
__device__ inline unsigned char* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char octet_dynamic_shared[];
  return octet_dynamic_shared;
}

__device__ inline unsigned int shared_address(const void* shared) {
  return static_cast<unsigned int>(__cvta_generic_to_shared(shared));
}

/// Copies 16 bytes to shared memory, or writes 16 zeros if not `inside`. `from` must be readable in both
/// cases. Both addresses are aligned to 16 bytes.
__device__ inline void copy_16(void* shared, const void* from, bool inside) {
  const int bytes = inside ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(bytes)
               : "memory");
}
/// Copies 16 bytes to shared memory.
__device__ inline void copy_16(void* shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(from)
               : "memory");
}
/// Copies 4 bytes to shared memory, or writes zeros if not `inside`.
__device__ inline void copy_4(void* shared, const void* from, bool inside) {
  const int bytes = inside ? 4 : 0;
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared_address(shared)), "l"(from),
               "r"(bytes)
               : "memory");
}
/// Ends a group of copies of this thread.
__device__ inline void end_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most `LEFT` groups of copies of this thread are in flight.
template <int LEFT>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

/// Loads four matrices of 8 x 8 bf16. Lanes 8 i … 8 i + 7 pass the rows of matrix i, and each lane gets two
/// elements of row lane / 4 of each matrix. `row`: a pointer to shared memory, or its shared_address().
__device__ inline void load_matrices(std::uint32_t (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ inline void load_matrices(std::uint32_t (&to)[4], const void* row) {
  load_matrices(to, shared_address(row));
}
/// Like load_matrices(), with each matrix transposed.
__device__ inline void load_transposed(std::uint32_t (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}
__device__ inline void load_transposed(std::uint32_t (&to)[4], const void* row) {
  load_transposed(to, shared_address(row));
}

/// Packs two values for tensor cores, with the first in the lower half.
__device__ inline std::uint32_t packed(__nv_bfloat16 low, __nv_bfloat16 high) {
  return static_cast<std::uint32_t>(__bfloat16_as_ushort(low)) |
         static_cast<std::uint32_t>(__bfloat16_as_ushort(high)) << 16;
}

/// Transposes a matrix of 8 x 8 bf16. Each lane holds two elements of row lane / 4.
__device__ inline std::uint32_t transposed(std::uint32_t x) {
  std::uint32_t y;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

/// d += a · b with a [16, 16] and b [16, 8] in bf16, or in fp16 if `FP16`, and d [16, 8] in fp32, in the
/// layout of the warp. A lane holds rows lane / 4 and lane / 4 + 8, columns 2 (lane % 4) and the next of d.
template <bool FP16 = false>
__device__ inline void multiply_add(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  if constexpr (FP16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Like multiply_add(), with a [16, 32] and b [32, 8] in E4M3. A register holds four values in place of two.
/// Only in code for compute capability 8.9 and later.
__device__ inline void multiply_add_e4m3(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                         std::uint32_t b1) {
#if __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  __trap();
#endif
}

}  // namespace octet::ops::cuda
