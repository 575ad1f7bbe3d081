// Tensor-core instructions of a warpgroup, which is four warps starting at a multiple of four. They read both
// operands from shared memory asynchronously. Only Hopper has them; on other GPUs they trap.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/mma.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define OCTET_HAS_WARPGROUPS 1
#endif

namespace octet::ops::cuda {

/// Returns the descriptor of an operand in shared memory: contiguous rows of 128 bytes of the inner
/// dimension. The 16-byte pieces are swizzled by the copy engine (CU_TENSOR_MAP_SWIZZLE_128B). `rows` is
/// aligned to 1024 bytes, plus 0, 32, 64 or 96 bytes to select a step of the inner dimension. PTX ISA,
/// "Matrix descriptor".
__device__ inline std::uint64_t warpgroup_operand(const void* rows) {
  constexpr std::uint64_t eight_rows = 1024 / 16, swizzled_128 = 1;
  return (shared_address(rows) & 0x3FFFFu) >> 4 | std::uint64_t{1} << 16 | eight_rows << 32 |
         swizzled_128 << 62;
}

/// Required before the first product, and after each write to registers of sums.
__device__ inline void begin_multiplies() {
#ifdef OCTET_HAS_WARPGROUPS
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
/// Ends a group of products.
__device__ inline void end_multiplies() {
#ifdef OCTET_HAS_WARPGROUPS
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/// Waits until at most `LEFT` groups of products are in flight.
template <int LEFT>
__device__ inline void wait_for_multiplies() {
#ifdef OCTET_HAS_WARPGROUPS
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
#endif
}
/// Prevents the compiler from reading sums before wait_for_multiplies().
template <int COUNT>
__device__ inline void take_sums(float (&d)[COUNT]) {
#pragma unroll
  for (int i = 0; i < COUNT; ++i) asm volatile("" : "+f"(d[i])::"memory");
}

/// Starts d = (adds ? d : 0) + a · bᵀ; end_multiplies() and wait_for_multiplies() complete it. In E4M3, a is
/// [64, 32], b is [COLUMNS, 32], and d is in fp32 with about 14 bits. In bf16, a is [64, 16], b is [COLUMNS,
/// 16], and d is in fp32. Element 4 i + 2 h + c of a thread is row 16 (warp % 4) + lane / 4 + 8 h, column 8 i
/// + 2 (lane % 4) + c of d.
template <bool FP8, int COLUMNS>
__device__ void warpgroup_multiply(float (&d)[COLUMNS / 2], std::uint64_t a, std::uint64_t b, bool adds);

// clang-format off
// The sums d[0, 64) and d[64, 128) of a thread: their names in an instruction, and the operands.
#define OCTET_NAMES_TO_64 \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OCTET_NAMES_TO_128 \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define OCTET_SUMS_TO_64 \
  "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), \
  "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), \
  "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), \
  "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]), \
  "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]), \
  "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), \
  "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]), \
  "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define OCTET_SUMS_TO_128 \
  "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]), \
  "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]), \
  "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]), \
  "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]), \
  "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]), \
  "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]), \
  "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]), \
  "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#ifdef OCTET_HAS_WARPGROUPS
#define OCTET_MULTIPLY(FP8, TYPES, SIGNS, COLUMNS, D, A, B, ADDS, ...)                                                  \
  template <>                                                                                                          \
  __device__ inline void warpgroup_multiply<FP8, COLUMNS>(float (&d)[COLUMNS / 2], std::uint64_t a, std::uint64_t b,   \
                                                          bool adds) {                                                 \
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, " ADDS ", 0; wgmma.mma_async.sync.aligned.m64n" #COLUMNS         \
                 TYPES " {" D "}, " A ", " B ", adds, 1, 1" SIGNS ";}"                                                 \
                 : __VA_ARGS__ : "l"(a), "l"(b), "r"(static_cast<int>(adds)));                                         \
  }
#else
#define OCTET_MULTIPLY(FP8, TYPES, SIGNS, COLUMNS, ...)                                                                 \
  template <>                                                                                                          \
  __device__ inline void warpgroup_multiply<FP8, COLUMNS>(float (&)[COLUMNS / 2], std::uint64_t, std::uint64_t, bool) {\
    __trap();                                                                                                          \
  }
#endif
// In bf16 either operand could be transposed: neither is.
#define OCTET_MULTIPLIES(COLUMNS, ...)                                                                                   \
  OCTET_MULTIPLY(true, "k32.f32.e4m3.e4m3", "", COLUMNS, __VA_ARGS__)                                                   \
  OCTET_MULTIPLY(false, "k16.f32.bf16.bf16", ", 0, 0", COLUMNS, __VA_ARGS__)

OCTET_MULTIPLIES(16, "%0, %1, %2, %3, %4, %5, %6, %7",
               "%8", "%9", "%10",
               "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]))
OCTET_MULTIPLIES(32, "%0, %1, %2, %3, %4, %5, %6, %7" ", "
               "%8, %9, %10, %11, %12, %13, %14, %15",
               "%16", "%17", "%18",
               "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
               "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]))
OCTET_MULTIPLIES(64, "%0, %1, %2, %3, %4, %5, %6, %7" ", "
               "%8, %9, %10, %11, %12, %13, %14, %15" ", "
               "%16, %17, %18, %19, %20, %21, %22, %23" ", "
               "%24, %25, %26, %27, %28, %29, %30, %31",
               "%32", "%33", "%34",
               "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
               "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
               "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
               "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]))
OCTET_MULTIPLIES(128, OCTET_NAMES_TO_64, "%64", "%65", "%66", OCTET_SUMS_TO_64)
#undef OCTET_MULTIPLIES
#undef OCTET_MULTIPLY
// clang-format on

}  // namespace octet::ops::cuda

namespace octet::ops::cuda {

// Wide products of a warpgroup (warpgroup.cuh): in bf16 with operands that may be transposed in shared
// memory, and in FP8.

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
