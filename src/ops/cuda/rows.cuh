// Building blocks of row-wise kernels. A kernel moves packs of eight elements: 16 bytes of bf16, 32 of f32.
// If rows are not aligned to 16 bytes, and at the ends of rows, the same code moves single elements. The
// order of sums depends only on shapes. These files are compiled without fused multiply-add, so
// the same expression gives the same bits on the CPU and the GPU.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels.h"
#include "octet/device/cuda.h"
#include "octet/ops/types.h"

namespace octet::ops::cuda {

/// Elements that a thread moves at once.
inline constexpr int kPack = 8;
inline constexpr int kWarp = 32;

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) {
  return (a + b - 1) / b;
}

/// Returns the number of blocks of a grid-stride loop over `items`. It is limited to the number that fills
/// the GPU.
inline unsigned grid_of(const Stream& stream, std::int64_t items, std::int64_t per_block,
                        int blocks_per_multiprocessor = 8) {
  const std::int64_t most = static_cast<std::int64_t>(
      octet::cuda::properties(stream.device()).multiprocessors * blocks_per_multiprocessor);
  const std::int64_t wanted = ceil_div(items, per_block);
  return static_cast<unsigned>(wanted < 1 ? 1 : (wanted < most ? wanted : most));
}

// --- elements ------------------------------------------------------------------------------------------

__device__ inline float to_float(float x) {
  return x;
}
__device__ inline float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
/// Like octet::from_f16: a NaN keeps its sign and fraction.
__device__ inline float to_float(__half x) {
  const unsigned bits = __half_as_ushort(x);
  if ((bits & 0x7FFFu) > 0x7C00u) {
    return __uint_as_float(((bits & 0x8000u) << 16) | 0x7FC00000u | ((bits & 0x3FFu) << 13));
  }
  return __half2float(x);
}
template <typename T>
__device__ inline T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
/// Like octet::to_bf16: a NaN keeps its sign and upper bits and becomes quiet.
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return __ushort_as_bfloat16(static_cast<unsigned short>((bits >> 16) | 0x40u));
  }
  return __float2bfloat16_rn(x);
}
/// Like octet::to_f16: a NaN becomes the quiet NaN of its sign.
template <>
__device__ inline __half from_float<__half>(float x) {
  const unsigned bits = __float_as_uint(x);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) {
    return __ushort_as_half(static_cast<unsigned short>(0x7E00u | ((bits >> 16) & 0x8000u)));
  }
  return __float2half_rn(x);
}
/// Rounds results in kernels that compute. Each NaN becomes the canonical NaN of the instruction. In pure
/// conversions, from_float() keeps sign and bits of a NaN, like the CPU side.
template <typename T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return from_float<__half>(x);
}
template <typename T>
__device__ inline float rounded_to(float x) {
  return to_float(narrow<T>(x));
}
/// Return the lower or the upper bf16 of a word as a float, in one instruction.
__device__ inline float low_half(unsigned word) {
  return __uint_as_float(word << 16);
}
__device__ inline float high_half(unsigned word) {
  return __uint_as_float(word & 0xFFFF0000u);
}
/// Rounds a pack in place, two elements per instruction.
template <typename T>
__device__ inline void round_pack(float (&x)[8]) {
  if constexpr (sizeof(T) == 2) {
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      const __nv_bfloat162 both = __floats2bfloat162_rn(x[i], x[i + 1]);
      const unsigned word = *reinterpret_cast<const unsigned*>(&both);
      x[i] = low_half(word);
      x[i + 1] = high_half(word);
    }
  }
}

/// Calls f(T{}) with the element type of `dtype`. The caller has checked that it is f32 or bf16.
template <typename F>
void with_type(DType dtype, F f) {
  if (dtype == DType::bf16) {
    f(__nv_bfloat16{});
  } else {
    f(float{});
  }
}

// --- packs ---------------------------------------------------------------------------------------------

/// True if packs of the rows of this matrix start on 16-byte boundaries.
inline bool packs(const void* data, DType dtype, std::int64_t ld) {
  const std::int64_t bytes = ld * static_cast<std::int64_t>(size_of(dtype));
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && bytes % 16 == 0;
}
inline bool packs(const ConstMatrix& m) {
  return m.data == nullptr || packs(m.data, m.dtype, m.ld);
}
inline bool packs(const Matrix& m) {
  return packs(ConstMatrix(m));
}
inline bool packs(const float* x) {
  return reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
}

/// A pack in its memory format, so that loads can be in flight before their use.
template <typename T>
struct RawPack {
  static constexpr int words = static_cast<int>(sizeof(T) * kPack / 16);
  uint4 word[words];
  __device__ void load(const T* x) {
#pragma unroll
    for (int w = 0; w < words; ++w) word[w] = reinterpret_cast<const uint4*>(x)[w];
  }
  __device__ void get(float (&to)[kPack]) const {
    if constexpr (std::is_same_v<T, __nv_bfloat16>) {
      const unsigned four[4] = {word[0].x, word[0].y, word[0].z, word[0].w};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        to[2 * i] = low_half(four[i]);
        to[2 * i + 1] = high_half(four[i]);
      }
    } else {
      const T* raw = reinterpret_cast<const T*>(word);
#pragma unroll
      for (int i = 0; i < kPack; ++i) to[i] = to_float(raw[i]);
    }
  }
};

/// Loads x[0..n) of a row (n <= kPack) as floats. `whole`: the pack is full and aligned to 16 bytes.
template <typename T>
__device__ inline void load_pack(const T* x, float (&to)[kPack], int n, bool whole) {
  if (whole) {
    RawPack<T> raw;
    raw.load(x);
    raw.get(to);
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) to[i] = i < n ? to_float(x[i]) : 0.0f;
  }
}
template <typename T>
__device__ inline void store_pack(T* to, const float (&x)[kPack], int n, bool whole) {
  if (whole) {
    alignas(16) T raw[kPack];
    constexpr int words = static_cast<int>(sizeof(raw) / 16);
#pragma unroll
    for (int i = 0; i < kPack; ++i) raw[i] = narrow<T>(x[i]);
#pragma unroll
    for (int w = 0; w < words; ++w) reinterpret_cast<uint4*>(to)[w] = reinterpret_cast<const uint4*>(raw)[w];
  } else {
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      if (i < n) to[i] = narrow<T>(x[i]);
    }
  }
}

/// The number of elements of a pack, and whether it is loaded and stored as a whole.
struct PackAt {
  int n;
  bool whole;
};
__device__ inline PackAt pack_at(std::int64_t col, std::int64_t cols, bool vector) {
  const std::int64_t left = cols - col;
  return {left < kPack ? static_cast<int>(left) : kPack, vector && left >= kPack};
}

template <typename T>
__device__ inline const T* row_of(const ConstMatrix& m, std::int64_t r) {
  return static_cast<const T*>(m.data) + r * m.ld;
}
template <typename T>
__device__ inline T* row_of(const Matrix& m, std::int64_t r) {
  return static_cast<T*>(m.data) + r * m.ld;
}

// --- sums over a block ---------------------------------------------------------------------------------

template <typename V, typename Combine>
__device__ inline V warp_reduce(V x, Combine combine) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    x = combine(x, __shfl_xor_sync(0xFFFFFFFFu, x, offset));
  }
  return x;
}

/// Returns the reduced value in all threads of a block of `threads` (a multiple of 32, at most 1024). V{}
/// must be the neutral element of `combine`. `shared` holds 32 values and may be reused after the next
/// barrier.
template <typename V, typename Combine>
__device__ inline V block_reduce(V x, V* shared, Combine combine) {
  const unsigned lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  x = warp_reduce(x, combine);
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  // Each warp combines the values of all warps, in the same order.
  return warp_reduce(lane < blockDim.x / kWarp ? shared[lane] : V{}, combine);
}
struct Plus {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a + b;
  }
};
struct Max {
  template <typename V>
  __device__ V operator()(V a, V b) const {
    return a > b ? a : b;
  }
};

// --- FP8 -----------------------------------------------------------------------------------------------

/// Saturating cast, bit-equal to octet::to_fp8.
__device__ inline std::uint8_t to_fp8_device(float x, bool e4m3) {
  // No format keeps the sign of a NaN: octet::to_fp8 writes 0x7F for each NaN, like __nv_cvt.
  return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
}
__device__ inline unsigned to_fp8_pair(float a, float b, bool e4m3) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, e4m3 ? __NV_E4M3 : __NV_E5M2);
}

/// Returns |x| as bits. Non-negative floats are ordered like their bits, and NaN is above infinity.
__device__ inline unsigned magnitude_bits(float x) {
  return __float_as_uint(x) & 0x7FFFFFFFu;
}
/// Sets *amax to the maximum of *amax and the float with these bits. The order of the calls does not matter.
__device__ inline void raise_amax(float* amax, unsigned bits) {
  // Most calls change nothing, and a read is cheaper than an atomic operation.
  if (bits > *reinterpret_cast<volatile unsigned*>(amax)) atomicMax(reinterpret_cast<unsigned*>(amax), bits);
}

/// The request for an FP8 copy, as passed to kernels. A row-wise kernel writes the row copy, and
/// finish_transposed() computes the transposed copy from it. Without a row copy, the kernel writes the
/// transposed copy.
struct Fp8Out {
  std::uint8_t* row = nullptr;
  std::uint8_t* scattered = nullptr;  ///< the transposed copy, written by elements; only without a row copy
  const float* scale = nullptr;
  float* amax = nullptr;
  Fp8Seen* seen = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool e4m3 = true;
  bool vector = false;  ///< packs of the row copy start on 8-byte boundaries
};
inline Fp8Out fp8_out(const QuantizeInto& q, std::int64_t rows, std::int64_t cols) {
  return {.row = q.row,
          .scattered = q.row ? nullptr : q.transposed,
          .scale = q.scale,
          .amax = q.amax,
          .seen = q.seen,
          .rows = rows,
          .cols = cols,
          .e4m3 = q.format == DType::e4m3,
          .vector = cols % kPack == 0 && reinterpret_cast<std::uintptr_t>(q.row) % kPack == 0};
}
__device__ inline float scale_of(const Fp8Out& out) {
  return out.row || out.scattered ? *out.scale : 1.0f;
}
/// Returns the largest magnitude among the first `n` elements of a pack, as bits.
__device__ inline unsigned most_of(const float (&y)[kPack], int n) {
  unsigned most = 0;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const unsigned bits = i < n ? magnitude_bits(y[i]) : 0u;
    most = bits > most ? bits : most;
  }
  return most;
}
__device__ inline void raise_most(const float (&y)[kPack], int n, unsigned& most) {
  const unsigned bits = most_of(y, n);
  most = bits > most ? bits : most;
}
/// Statistics of the values that a thread casts to FP8, later added up over its block.
struct Met {
  unsigned most = 0;                 ///< largest magnitude, as bits
  unsigned saturated = 0, lost = 0;  ///< numbers of values that saturated or became zero
};
/// Adds the first `n` elements of a pack to the statistics.
__device__ inline void meet_pack(const Fp8Out& out, const float (&y)[kPack], float scale, int n, Met& met) {
  if (!out.amax && !out.seen) return;
  const unsigned pack_most = most_of(y, n);
  if (pack_most > met.most) met.most = pack_most;
  if (!out.seen) return;
  const DType format = out.e4m3 ? DType::e4m3 : DType::e5m2;
  const float most = fp8_fits(format), least = fp8_lost(format);
  // Most packs lose nothing. Their largest and smallest magnitudes prove this, because scaling keeps the
  // order. If the largest value is a NaN, the comparison fails and each element is checked.
  float smallest = INFINITY;
#pragma unroll
  for (int i = 0; i < kPack; ++i) smallest = i < n ? fminf(smallest, fabsf(y[i])) : smallest;
  if (__uint_as_float(pack_most) * scale <= most && smallest * scale > least) return;
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    const float magnitude = fabsf(y[i] * scale);
    met.saturated += i < n && magnitude > most;
    met.lost += i < n && magnitude <= least && y[i] != 0.0f;
  }
}
__device__ inline uint2 to_fp8_pack(const float (&y)[kPack], float scale, bool e4m3) {
  uint2 codes;
  codes.x =
      to_fp8_pair(y[0] * scale, y[1] * scale, e4m3) | (to_fp8_pair(y[2] * scale, y[3] * scale, e4m3) << 16);
  codes.y =
      to_fp8_pair(y[4] * scale, y[5] * scale, e4m3) | (to_fp8_pair(y[6] * scale, y[7] * scale, e4m3) << 16);
  return codes;
}
/// Writes the FP8 copy of a pack and adds the pack to the statistics.
__device__ inline void take_pack(const Fp8Out& out, const float (&y)[kPack], float scale, std::int64_t row,
                                 std::int64_t col, int n, Met& met) {
  meet_pack(out, y, scale, n, met);
  if (out.row) {
    std::uint8_t* to = out.row + row * out.cols + col;
    if (out.vector && n == kPack) {
      *reinterpret_cast<uint2*>(to) = to_fp8_pack(y, scale, out.e4m3);
    } else {
      for (int i = 0; i < n; ++i) to[i] = to_fp8_device(y[i] * scale, out.e4m3);
    }
  } else if (out.scattered) {
    for (int i = 0; i < n; ++i) {
      out.scattered[(col + i) * out.rows + row] = to_fp8_device(y[i] * scale, out.e4m3);
    }
  }
}
/// Adds the counts of a block to `seen`. Called by all threads. `shared` holds 32 numbers.
__device__ inline void add_counts(Fp8Seen* seen, const Met& met, unsigned* shared) {
  if (!__syncthreads_or(met.saturated | met.lost)) return;
  const unsigned saturated = block_reduce(met.saturated, shared, Plus{});
  const unsigned lost = block_reduce(met.lost, shared, Plus{});
  if (threadIdx.x != 0) return;
  const auto add = [](std::uint64_t& to, unsigned count) {
    if (count > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(&to), static_cast<unsigned long long>(count));
    }
  };
  add(seen->saturated, saturated);
  add(seen->lost, lost);
}
/// Raises the amax and updates the cast statistics with the statistics of a block. Called by all threads.
__device__ inline void finish_met(const Fp8Out& out, const Met& met, float scale, unsigned* shared) {
  if (!out.amax && !out.seen) return;
  const unsigned most = block_reduce(met.most, shared, Max{});
  // Two threads, so that the second read of memory does not wait for the first.
  if (threadIdx.x == 0 && out.amax) raise_amax(out.amax, most);
  if (!out.seen) return;
  if (threadIdx.x == 1) raise_amax(&out.seen->amax, most);
  add_counts(out.seen, met, shared);
  // Scale and count are values of the whole matrix, so one thread of the grid writes them. Casts on a stream
  // run one after another.
  if (threadIdx.x != 0 || blockIdx.x != 0) return;
  if (out.seen->scale == 0.0f || scale < out.seen->scale) out.seen->scale = scale;
  out.seen->values += static_cast<std::uint64_t>(out.rows) * static_cast<std::uint64_t>(out.cols);
}

/// Enqueues the transposed copy of a producer, computed from its finished row copy.
inline void finish_transposed(Stream& stream, const QuantizeInto& q, std::int64_t rows, std::int64_t cols) {
  if (q.row && q.transposed)
    transpose(stream, {.from = q.row, .rows = rows, .cols = cols, .to = q.transposed});
}

}  // namespace octet::ops::cuda
