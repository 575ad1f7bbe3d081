// Shared code of the wire kernels (wire_encode.cu, wire_sum.cu). A warp
// processes a tile of four or eight blocks of 128 elements. Each lane has four neighbouring elements of each
// block. So each load and store of a warp is one range of bytes, and the largest magnitude of a block is one
// reduction over the warp. Byte codes start at an offset that depends on the number of blocks, and move as
// words for any such offset. Unaligned data and the last tile are processed element by element with the same
// code.
#pragma once

#include <algorithm>
#include <array>
#include <vector>

#include "cuda/rows.cuh"
#include "one_nan.h"

namespace octet::ops::cuda::wires {

constexpr int kThreads = 256;
constexpr int kQuad = 4;  // neighbouring elements that a lane moves at once
// Quads of a lane in a tile, one per block. They keep 64 bytes of a lane in flight, or half as many if a lane
// reads several arrays. Codes are read as single words, so eight are enough.
constexpr int kQuads = 4;
constexpr int kQuadsOfNarrow = 8;
static_assert(kWarp * kQuad == kWireBlock);

/// The elements of a lane in a tile of some blocks.
template <int quads>
using Values = float[quads][kQuad];

/// Stored elements, and the word that a lane moves: fp32, bf16 as bits, codes.
template <typename E>
struct Lies;
template <>
struct Lies<float> {
  using Word = uint4;
};
template <>
struct Lies<std::uint16_t> {
  using Word = uint2;
};
template <>
struct Lies<std::uint8_t> {
  using Word = unsigned;
};
template <typename E>
using WordOf = typename Lies<E>::Word;

/// Processing of a tile: all of it, by words; or one block at a time, element by element.
template <int of>
struct WholeTile {
  static constexpr int quads = of;
  static constexpr bool whole = true;
};
struct OneBlock {
  static constexpr int quads = 1;
  static constexpr bool whole = false;
};

/// Calls f(WholeTile{} or OneBlock{}, base) for each part of this warp, which begins at element `base`.
template <int quads, typename F>
__device__ inline void each_tile(std::int64_t count, bool vector, F f) {
  constexpr int warps = kThreads / kWarp;
  constexpr std::int64_t span = quads * kWireBlock;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * warps * span;
  std::int64_t base = (static_cast<std::int64_t>(blockIdx.x) * warps + threadIdx.x / kWarp) * span;
  for (; base < count; base += stride) {
    if (vector && base + span <= count) {
      f(WholeTile<quads>{}, base);
    } else {
      const std::int64_t end = min(base + span, count);
#pragma unroll 1
      for (std::int64_t block = base; block < end; block += kWireBlock) f(OneBlock{}, block);
    }
  }
}

/// Returns the first element of this lane in block q of the tile at `base`.
__device__ inline std::int64_t element(std::int64_t base, int q) {
  return base + q * kWireBlock + static_cast<int>(threadIdx.x) % kWarp * kQuad;
}

/// Loads elements x[i … i + 3], with zeros from `count` on.
template <bool whole, typename E>
__device__ inline WordOf<E> load_word(const E* x, std::int64_t i, std::int64_t count) {
  if constexpr (whole) {
    return *reinterpret_cast<const WordOf<E>*>(x + i);
  } else {
    alignas(WordOf<E>) E raw[kQuad];
#pragma unroll
    for (int k = 0; k < kQuad; ++k) raw[k] = i + k < count ? x[i + k] : E{};
    return *reinterpret_cast<const WordOf<E>*>(raw);
  }
}
template <bool whole, typename E>
__device__ inline void store_word(E* to, std::int64_t i, std::int64_t count, WordOf<E> word) {
  if constexpr (whole) {
    *reinterpret_cast<WordOf<E>*>(to + i) = word;
  } else {
    alignas(WordOf<E>) E raw[kQuad];
    *reinterpret_cast<WordOf<E>*>(raw) = word;
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      if (i + k < count) to[i + k] = raw[k];
    }
  }
}

__device__ inline void widen(const uint4& word, float (&x)[kQuad]) {
  x[0] = __uint_as_float(word.x);
  x[1] = __uint_as_float(word.y);
  x[2] = __uint_as_float(word.z);
  x[3] = __uint_as_float(word.w);
}
__device__ inline void widen(const uint2& word, float (&x)[kQuad]) {
  x[0] = low_half(word.x);
  x[1] = high_half(word.x);
  x[2] = low_half(word.y);
  x[3] = high_half(word.y);
}

/// Returns the bits of a value, with every NaN replaced by the canonical NaN. The magnitude is computed in
/// assembly. Otherwise the compiler treats all NaNs as equal and removes the selection.
__device__ inline unsigned settled_bits(float x) {
  const unsigned bits = __float_as_uint(x);
  unsigned magnitude;
  asm("and.b32 %0, %1, 0x7FFFFFFF;" : "=r"(magnitude) : "r"(bits));
  return magnitude > 0x7F800000u ? kNanBits : bits;
}
__device__ inline float settled_here(float x) {
  return __uint_as_float(settled_bits(x));
}
__device__ inline double settled_here(double x) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x));
  unsigned long long magnitude;
  asm("and.b64 %0, %1, 0x7FFFFFFFFFFFFFFF;" : "=l"(magnitude) : "l"(bits));
  return __longlong_as_double(
      static_cast<long long>(magnitude > 0x7FF0000000000000ull ? kDoubleNanBits : bits));
}
__device__ inline std::int64_t settled_here(std::int64_t x) {
  return x;
}

/// Packs two values as bf16 into a word, rounded like to_settled_bf16.
__device__ inline unsigned two_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  unsigned word = *reinterpret_cast<const unsigned*>(&both);
  if (low != low) word = (word & 0xFFFF0000u) | kBf16NanBits;
  if (high != high) word = (word & 0xFFFFu) | (static_cast<unsigned>(kBf16NanBits) << 16);
  return word;
}

/// Converts values to a word of elements E, with canonical NaNs.
template <typename E>
__device__ inline WordOf<E> narrow_word(const float (&x)[kQuad]) {
  if constexpr (std::is_same_v<E, float>) {
    return {settled_bits(x[0]), settled_bits(x[1]), settled_bits(x[2]), settled_bits(x[3])};
  } else {
    return {two_bf16(x[0], x[1]), two_bf16(x[2], x[3])};
  }
}

template <bool whole, int quads, typename E>
__device__ inline void load_values(const E* from, std::int64_t base, std::int64_t count, Values<quads>& x) {
  WordOf<E> word[quads];
#pragma unroll
  for (int q = 0; q < quads; ++q) word[q] = load_word<whole>(from, element(base, q), count);
#pragma unroll
  for (int q = 0; q < quads; ++q) widen(word[q], x[q]);
}
template <bool whole, int quads, typename E>
__device__ inline void store_values(E* to, std::int64_t base, std::int64_t count, const Values<quads>& x) {
#pragma unroll
  for (int q = 0; q < quads; ++q) store_word<whole>(to, element(base, q), count, narrow_word<E>(x[q]));
}

/// Decodes codes and multiplies them by the factor of their block.
template <Wire wire>
__device__ inline void decode_word(unsigned word, float scale, float (&x)[kQuad]) {
  if constexpr (wire == Wire::fp8) {
#pragma unroll
    for (int k = 0; k < kQuad; k += 2) {
      const auto two = static_cast<__nv_fp8x2_storage_t>((word >> (8 * k)) & 0xFFFFu);
      const float2 both = __half22float2(__half2(__nv_cvt_fp8x2_to_halfraw2(two, __NV_E4M3)));
      x[k] = __fmul_rn(both.x, scale);
      x[k + 1] = __fmul_rn(both.y, scale);
    }
  } else {
    // A byte below the exponent of 2^23 is 2^23 plus the byte, which is 128 more than its code.
    const unsigned shifted = word ^ 0x80808080u;
#pragma unroll
    for (unsigned k = 0; k < kQuad; ++k) {
      const float placed = __uint_as_float(__byte_perm(shifted, 0x4B000000u, 0x7440u | k));
      x[k] = __fmul_rn(__fsub_rn(placed, 0x1p23f + 128.0f), scale);
    }
  }
}

/// The undecoded elements of a lane in a tile, so that loads of several parts can be in flight.
template <Wire wire, typename Tile>
struct PartTile {
  static constexpr bool blocks = wire == Wire::fp8 || wire == Wire::int8;
  using Element = std::conditional_t<wire == Wire::f32, float,
                                     std::conditional_t<wire == Wire::bf16, std::uint16_t, std::uint8_t>>;
  WordOf<Element> word[Tile::quads];
  float scale[blocks ? Tile::quads : 1];

  __device__ void load(const void* part, std::int64_t base, std::int64_t count) {
    const auto* from = static_cast<const Element*>(part);
    if constexpr (blocks) from += wire_blocks(count) * static_cast<std::int64_t>(sizeof(float));
#pragma unroll
    for (int q = 0; q < Tile::quads; ++q) {
      word[q] = load_word<Tile::whole>(from, element(base, q), count);
      if constexpr (blocks) scale[q] = static_cast<const float*>(part)[base / kWireBlock + q];
    }
  }
  __device__ void get(int q, float (&x)[kQuad]) const {
    if constexpr (blocks) {
      decode_word<wire>(word[q], scale[q], x);
    } else {
      widen(word[q], x);
    }
  }
};

/// Pointers in the parameters of a kernel.
template <int most>
struct Parts {
  const void* of[most];
  int count;
};
constexpr int kFewParts = 64;
constexpr int kManyParts = static_cast<int>(kMostParts);

/// Calls f(E{}) with the element type of values.
template <typename F>
void with_values(DType dtype, F f) {
  if (dtype == DType::bf16) {
    f(std::uint16_t{});
  } else {
    f(float{});
  }
}
/// Calls f(constant) with the wire format of encoded data.
template <typename F>
void with_narrow(Wire wire, F f) {
  if (wire == Wire::bf16) {
    f(std::integral_constant<Wire, Wire::bf16>{});
  } else if (wire == Wire::fp8) {
    f(std::integral_constant<Wire, Wire::fp8>{});
  } else {
    f(std::integral_constant<Wire, Wire::int8>{});
  }
}
template <typename F>
void with_wire(Wire wire, F f) {
  if (wire == Wire::f32) {
    f(std::integral_constant<Wire, Wire::f32>{});
  } else {
    with_narrow(wire, f);
  }
}

/// True if words of four elements of `bytes` bytes are aligned. Codes are aligned if the factors before them
/// are.
inline bool moves_words(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % (kQuad * bytes) == 0;
}
inline bool moves_words(const void* at, Wire wire) {
  return moves_words(at, wire == Wire::f32 ? 4 : (wire == Wire::bf16 ? 2 : 1));
}

inline unsigned grid_for(const Stream& stream, std::int64_t count, int quads = kQuads) {
  return grid_of(stream, count, static_cast<std::int64_t>(kThreads / kWarp) * quads * kWireBlock);
}

}  // namespace octet::ops::cuda::wires
