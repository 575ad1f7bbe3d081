// Wide products of a warpgroup (warpgroup.cuh): in bf16 with operands that may be transposed in shared
// memory, and in FP8.
#pragma once

#include "cuda/warpgroup.cuh"

namespace octet::ops::cuda {

/// Returns the descriptor of a transposed operand: rows of the inner dimension with 64 outputs (128 bytes)
/// each, swizzled by the copy engine. `rows` is the first of 16 rows, at a multiple of 8 rows after a
/// 1024-byte boundary. The next 64 outputs start `next` bytes later. PTX ISA, "Matrix descriptor"; leading
/// dimension: outputs, stride: inner dimension.
__device__ inline std::uint64_t transposed_operand(const void* rows, unsigned next) {
  constexpr std::uint64_t eight_rows = 1024 / 16, swizzled_128 = 1;
  return (shared_address(rows) & 0x3FFFFu) >> 4 | std::uint64_t{next >> 4} << 16 | eight_rows << 32 |
         swizzled_128 << 62;
}

/// d += a · bᵀ with a [64, 16] and b [256, 16] in bf16, and d in fp32. A_TRANSPOSED, B_TRANSPOSED: the
/// operand is a transposed_operand(). The elements of a thread are like in warpgroup_multiply().
template <bool A_TRANSPOSED, bool B_TRANSPOSED>
__device__ inline void wide_multiply(float (&d)[128], std::uint64_t a, std::uint64_t b) {
#ifdef OCTET_HAS_WARPGROUPS
  // clang-format off
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" OCTET_NAMES_TO_64 ", " OCTET_NAMES_TO_128
      "}, %128, %129, 1, 1, 1, %130, %131;"
      : OCTET_SUMS_TO_64, OCTET_SUMS_TO_128
      : "l"(a), "l"(b), "n"(A_TRANSPOSED ? 1 : 0), "n"(B_TRANSPOSED ? 1 : 0));
  // clang-format on
#else
  __trap();
#endif
}

/// d = (adds ? d : 0) + a · bᵀ with a [64, 32] in E4M3 or E5M2 and b [2 * SUMS, 32] in E4M3. d has about 14
/// bits. The elements of a thread are like in warpgroup_multiply().
template <bool A_E5M2, int SUMS>
__device__ void multiply_fp8(float (&d)[SUMS], std::uint64_t a, std::uint64_t b, bool adds);

// clang-format off
/// An FP8 product of [64, 32] in TYPE with [COLUMNS, 32] in E4M3. D: the names of the sums; A, B, ADDS: of the
/// operands after them; then the sums.
#ifdef OCTET_HAS_WARPGROUPS
#define OCTET_FP8_MULTIPLY(IS_E5M2, TYPE, COLUMNS, D, A, B, ADDS, ...)                                            \
  template <>                                                                                                  \
  __device__ inline void multiply_fp8<IS_E5M2, COLUMNS / 2>(float (&d)[COLUMNS / 2], std::uint64_t a,          \
                                                            std::uint64_t b, bool adds) {                      \
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, " ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS \
                 "k32.f32." TYPE ".e4m3 {" D "}, " A ", " B ", adds, 1, 1;}"                                   \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                                 \
  }
#else
#define OCTET_FP8_MULTIPLY(IS_E5M2, TYPE, COLUMNS, ...)                                                           \
  template <>                                                                                                  \
  __device__ inline void multiply_fp8<IS_E5M2, COLUMNS / 2>(float (&)[COLUMNS / 2], std::uint64_t,             \
                                                            std::uint64_t, bool) {                             \
    __trap();                                                                                                  \
  }
#endif
#define OCTET_FP8_MULTIPLIES(...)                  \
  OCTET_FP8_MULTIPLY(false, "e4m3", __VA_ARGS__)  \
  OCTET_FP8_MULTIPLY(true, "e5m2", __VA_ARGS__)

OCTET_FP8_MULTIPLIES(128, OCTET_NAMES_TO_64, "%64", "%65", "%66", OCTET_SUMS_TO_64)
OCTET_FP8_MULTIPLIES(256, OCTET_NAMES_TO_64 ", " OCTET_NAMES_TO_128, "%128", "%129", "%130",
                   OCTET_SUMS_TO_64, OCTET_SUMS_TO_128)
#undef OCTET_FP8_MULTIPLIES
#undef OCTET_FP8_MULTIPLY
// clang-format on

}  // namespace octet::ops::cuda
