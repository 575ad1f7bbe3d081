// Kernels of wires. A warp takes a tile of four or eight blocks of 128 elements, and each of its lanes four
// neighbours of every block: then each load and store of a warp is one run of bytes, the largest magnitude of
// a block is one reduction over the warp, and codes of a byte, whose place depends on the number of blocks
// before them, move as words wherever they start. What does not lie on the boundary of such words, and the
// last tile, goes element by element through the same code.
#include <algorithm>
#include <array>
#include <vector>

#include "cuda/rows.cuh"
#include "one_nan.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;  // neighbours that a lane moves at once
// Of them in a tile, one a block: as many as keep 64 bytes of a lane under way, or half as many where a lane
// has more than one array to read. Codes are read by single words, of which eight are enough.
constexpr int kQuads = 4;
constexpr int kQuadsOfNarrow = 8;
static_assert(kWarp * kQuad == kWireBlock);

/// What a lane has of a tile of some blocks.
template <int quads>
using Values = float[quads][kQuad];

/// Elements as they lie, and the word that a lane moves: fp32, bf16 as its bits, codes.
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

/// How a tile is worked on: all of it, by words; or a block at a time, element by element.
template <int of>
struct WholeTile {
  static constexpr int quads = of;
  static constexpr bool whole = true;
};
struct OneBlock {
  static constexpr int quads = 1;
  static constexpr bool whole = false;
};

/// Calls f(WholeTile{} or OneBlock{}, base) for what this warp takes, which begins at element `base`.
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

/// The first of this lane's elements in block q of the tile at `base`.
__device__ inline std::int64_t element(std::int64_t base, int q) {
  return base + q * kWireBlock + static_cast<int>(threadIdx.x) % kWarp * kQuad;
}

/// Elements x[i … i + 3], or zeros from `count` on.
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

/// The bits of a value with the one NaN for every other. The compiler counts all NaNs as equal and would
/// leave the choice out: what asks for the magnitude is hidden from it.
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

/// Two values as bf16 in a word, as to_settled_bf16 rounds them.
__device__ inline unsigned two_bf16(float low, float high) {
  const __nv_bfloat162 both = __floats2bfloat162_rn(low, high);
  unsigned word = *reinterpret_cast<const unsigned*>(&both);
  if (low != low) word = (word & 0xFFFF0000u) | kBf16NanBits;
  if (high != high) word = (word & 0xFFFFu) | (static_cast<unsigned>(kBf16NanBits) << 16);
  return word;
}

/// Values to the word of E's elements, NaNs settled.
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

// --- blocks --------------------------------------------------------------------------------------------

/// What codes say times the factor of their block.
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
    // A byte under the exponent of 2^23 is 2^23 and what it counts; it counts 128 more than its code says.
    const unsigned shifted = word ^ 0x80808080u;
#pragma unroll
    for (unsigned k = 0; k < kQuad; ++k) {
      const float placed = __uint_as_float(__byte_perm(shifted, 0x4B000000u, 0x7440u | k));
      x[k] = __fmul_rn(__fsub_rn(placed, 0x1p23f + 128.0f), scale);
    }
  }
}

/// A factor, and its inverse where it lies so far from the ends of fp32 that quotients can be had by way of
/// it; else 0.
struct Factor {
  float scale;
  float inverse;
};
template <Wire wire>
__device__ inline Factor factor_of(unsigned largest) {
  Factor f{__uint_as_float(kNanBits), 0.0f};
  if (largest < 0x7F800000u) {
    f.scale = __fdiv_rn(__uint_as_float(largest), wire == Wire::fp8 ? 448.0f : 127.0f);
    if (f.scale >= 0x1p-60f && f.scale <= 0x1p60f) f.inverse = __fdiv_rn(1.0f, f.scale);
  }
  return f;
}

/// The quotient that a division gives, but for the sign of a zero and what is far below 2^-10, which every
/// format here rounds to 0: with the inverse rounded to nearest, a quotient that is within a unit of the
/// exact one is made the nearest one by its remainder (Markstein 1990, "Computation of elementary functions
/// on the IBM RISC System/6000 processor").
__device__ inline float quotient(float x, const Factor& f) {
  const float first = __fmul_rn(x, f.inverse);
  const float close = __fmaf_rn(__fmaf_rn(-first, f.scale, x), f.inverse, first);
  return __fmaf_rn(__fmaf_rn(-close, f.scale, x), f.inverse, close);
}

template <Wire wire>
__device__ inline unsigned encode_word(const float (&x)[kQuad], const Factor& f) {
  // All zero, or not finite: the factor says it all, times 1.
  if (!(f.scale > 0.0f)) return wire == Wire::fp8 ? 0x38383838u : 0x01010101u;
  float y[kQuad];
  if (f.inverse != 0.0f) {
#pragma unroll
    for (int k = 0; k < kQuad; ++k) y[k] = copysignf(quotient(x[k], f), x[k]);
  } else {
#pragma unroll
    for (int k = 0; k < kQuad; ++k) y[k] = __fdiv_rn(x[k], f.scale);
  }
  if constexpr (wire == Wire::fp8) {
    return to_fp8_pair(y[0], y[1], true) | (to_fp8_pair(y[2], y[3], true) << 16);
  } else {
    // Round to nearest even by the unit in the last place of 1.5 * 2^23.
    constexpr float shift = 0x1.8p23f;
    unsigned code[kQuad];
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      const int rounded = __float_as_int(__fadd_rn(y[k], shift)) - __float_as_int(shift);
      code[k] = static_cast<unsigned>(max(-127, min(127, rounded)));
    }
    const unsigned low = __byte_perm(code[0], code[1], 0x0040u);
    const unsigned high = __byte_perm(code[2], code[3], 0x0040u);
    return __byte_perm(low, high, 0x5410u);
  }
}

// --- parts that have arrived ---------------------------------------------------------------------------

/// A lane's elements of a tile as they arrived, so that those of several parts can be under way at a time.
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

/// Pointers that a kernel gets as its parameter.
template <int most>
struct Parts {
  const void* of[most];
  int count;
};
constexpr int kFewParts = 64;
constexpr int kManyParts = static_cast<int>(kMostParts);

// --- kernels -------------------------------------------------------------------------------------------

enum class Residual { none, adds, keeps };

template <typename E, Residual residual>
constexpr int kQuadsOfEncode = sizeof(E) == 2 && residual == Residual::none ? kQuadsOfNarrow : kQuads;
template <Wire wire>
constexpr int kQuadsOfDecode = wire == Wire::fp8 || wire == Wire::int8 ? kQuadsOfNarrow : kQuads;

template <Wire wire, typename E, Residual residual>
__global__ void __launch_bounds__(kThreads) encode_kernel(EncodeArgs a, bool vector) {
  const auto* from = static_cast<const E*>(a.from);
  [[maybe_unused]] auto* scales = static_cast<float*>(a.to);
  [[maybe_unused]] auto* codes =
      static_cast<std::uint8_t*>(a.to) + wire_blocks(a.count) * static_cast<std::int64_t>(sizeof(float));
  each_tile<kQuadsOfEncode<E, residual>>(a.count, vector, [&](auto tile, std::int64_t base) {
    constexpr bool whole = decltype(tile)::whole;
    constexpr int quads = decltype(tile)::quads;
    Values<quads> x;
    [[maybe_unused]] Values<quads> before, arrives;
    load_values<whole, quads>(from, base, a.count, x);
    if constexpr (residual != Residual::none) load_values<whole, quads>(a.residual, base, a.count, before);
    if constexpr (residual == Residual::adds) {
#pragma unroll
      for (int q = 0; q < quads; ++q) {
#pragma unroll
        for (int k = 0; k < kQuad; ++k) x[q][k] += before[q][k];
      }
    }
    if constexpr (wire == Wire::bf16) {
#pragma unroll
      for (int q = 0; q < quads; ++q) {
        const uint2 word = narrow_word<std::uint16_t>(x[q]);
        store_word<whole>(static_cast<std::uint16_t*>(a.to), element(base, q), a.count, word);
        widen(word, arrives[q]);
      }
    } else {
      const int lane = static_cast<int>(threadIdx.x) % kWarp;
      unsigned largest[quads];
#pragma unroll
      for (int q = 0; q < quads; ++q) {
        largest[q] = 0;
#pragma unroll
        for (int k = 0; k < kQuad; ++k) largest[q] = max(largest[q], magnitude_bits(x[q][k]));
        largest[q] = __reduce_max_sync(0xFFFFFFFFu, largest[q]);
      }
      // A lane makes the factor of one block; then all get all of them.
      unsigned mine = largest[0];
#pragma unroll
      for (int q = 1; q < quads; ++q) mine = lane == q ? largest[q] : mine;
      const Factor own = factor_of<wire>(mine);
      if (lane < quads) scales[base / kWireBlock + lane] = own.scale;
#pragma unroll
      for (int q = 0; q < quads; ++q) {
        const Factor f{__shfl_sync(0xFFFFFFFFu, own.scale, q), __shfl_sync(0xFFFFFFFFu, own.inverse, q)};
        const unsigned word = encode_word<wire>(x[q], f);
        store_word<whole>(codes, element(base, q), a.count, word);
        if constexpr (residual != Residual::none) decode_word<wire>(word, f.scale, arrives[q]);
      }
    }
    if constexpr (residual != Residual::none) {
#pragma unroll
      for (int q = 0; q < quads; ++q) {
#pragma unroll
        for (int k = 0; k < kQuad; ++k) {
          float lost = x[q][k] - arrives[q][k];
          lost = magnitude_bits(lost) < 0x7F800000u ? lost : 0.0f;
          arrives[q][k] = residual == Residual::keeps ? lost + before[q][k] : lost;
        }
      }
      store_values<whole, quads>(a.residual, base, a.count, arrives);
    }
  });
}

template <Wire wire, typename E>
__global__ void __launch_bounds__(kThreads) decode_kernel(DecodeArgs a, bool vector) {
  each_tile<kQuadsOfDecode<wire>>(a.count, vector, [&](auto tile, std::int64_t base) {
    constexpr bool whole = decltype(tile)::whole;
    constexpr int quads = decltype(tile)::quads;
    PartTile<wire, decltype(tile)> part;
    part.load(a.part, base, a.count);
    Values<quads> x;
#pragma unroll
    for (int q = 0; q < quads; ++q) part.get(q, x[q]);
    store_values<whole, quads>(static_cast<E*>(a.to), base, a.count, x);
  });
}

// Three blocks of threads to a multiprocessor: what is under way then covers the time that memory takes.
template <Wire wire, typename E, int most>
__global__ void __launch_bounds__(kThreads, 3) sum_kernel(const __grid_constant__ Parts<most> parts, E* to,
                                                          std::int64_t count, bool accumulate, bool vector) {
  each_tile<kQuads>(count, vector, [&](auto tile, std::int64_t base) {
    constexpr bool whole = decltype(tile)::whole;
    constexpr int quads = decltype(tile)::quads;
    constexpr int at_once = !whole ? 1 : (wire == Wire::f32 ? 2 : 4);
    Values<quads> sum = {};
    for (int first = 0; first < parts.count; first += at_once) {
      PartTile<wire, decltype(tile)> part[at_once];
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p < parts.count) part[p].load(parts.of[first + p], base, count);
      }
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p >= parts.count) continue;
        // The first part is not added to 0, which would take the sign of a zero.
        const bool starts = p == 0 && first == 0;
#pragma unroll
        for (int q = 0; q < quads; ++q) {
          float x[kQuad];
          part[p].get(q, x);
#pragma unroll
          for (int k = 0; k < kQuad; ++k) sum[q][k] = starts ? x[k] : sum[q][k] + x[k];
        }
      }
    }
    if (accumulate) {
      Values<quads> before;
      load_values<whole, quads>(to, base, count, before);
#pragma unroll
      for (int q = 0; q < quads; ++q) {
#pragma unroll
        for (int k = 0; k < kQuad; ++k) sum[q][k] = before[q][k] + sum[q][k];
      }
    }
    store_values<whole, quads>(to, base, count, sum);
  });
}

/// A tree as a kernel gets it.
template <int most>
struct Tree {
  const float* of[most];
  unsigned short merges[most];
  int count;
};

// A thread takes n neighbours. The sum on top of its stack is in registers; those below are in shared memory,
// level by level, so that neighbouring threads use neighbouring words.
template <int most, int n>
__global__ void __launch_bounds__(kThreads)
    tree_kernel(const __grid_constant__ Tree<most> tree, float* to, std::int64_t count, bool vector) {
  using Word = std::conditional_t<n == kQuad, float4, float>;
  static_assert(sizeof(Word) == n * sizeof(float));
  extern __shared__ float4 levels[];
  Word* const stack = reinterpret_cast<Word*>(levels) + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x * n;
  const auto sum_at = [&](auto is_whole, std::int64_t i) {
    constexpr bool whole = decltype(is_whole)::value;
    constexpr int at_once = 4;
    alignas(Word) float top[n] = {};
    int below = 0;
    for (int first = 0; first < tree.count; first += at_once) {
      alignas(Word) float next[at_once][n];
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p >= tree.count) continue;
        const float* from = tree.of[first + p] + i;
        if constexpr (whole) {
          *reinterpret_cast<Word*>(next[p]) = *reinterpret_cast<const Word*>(from);
        } else {
#pragma unroll
          for (int k = 0; k < n; ++k) next[p][k] = i + k < count ? from[k] : 0.0f;
        }
      }
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p >= tree.count) continue;
        if (first + p > 0) stack[below++ * blockDim.x] = *reinterpret_cast<const Word*>(top);
#pragma unroll
        for (int k = 0; k < n; ++k) top[k] = next[p][k];
        for (int merge = tree.merges[first + p]; merge > 0; --merge) {
          alignas(Word) float lower[n];
          *reinterpret_cast<Word*>(lower) = stack[--below * blockDim.x];
#pragma unroll
          for (int k = 0; k < n; ++k) top[k] = lower[k] + top[k];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < n; ++k) top[k] = settled_here(top[k]);
    if constexpr (whole) {
      *reinterpret_cast<Word*>(to + i) = *reinterpret_cast<const Word*>(top);
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (i + k < count) to[i + k] = top[k];
      }
    }
  };
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * n; i < count;
       i += stride) {
    if (vector && i + n <= count) {
      sum_at(std::true_type{}, i);
    } else {
      sum_at(std::false_type{}, i);
    }
  }
}

struct Larger {
  using Type = float;
  __device__ float operator()(float a, float b) const {
    if (a != a || b != b) return __uint_as_float(kNanBits);
    return a < b ? b : a;
  }
};
struct IntegerSum {
  using Type = std::int64_t;
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
struct DoubleSum {
  using Type = double;
  __device__ double operator()(double a, double b) const { return __dadd_rn(a, b); }
};

template <typename Two, int most>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ Parts<most> parts, typename Two::Type* to, std::int64_t count) {
  using T = typename Two::Type;
  const Two two;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    T result = static_cast<const T*>(parts.of[0])[i];
#pragma unroll 4
    for (int p = 1; p < parts.count; ++p) result = two(result, static_cast<const T*>(parts.of[p])[i]);
    to[i] = settled_here(result);
  }
}

// --- launches ------------------------------------------------------------------------------------------

/// Calls f(E{}) with the element type of values.
template <typename F>
void with_values(DType dtype, F f) {
  if (dtype == DType::bf16) {
    f(std::uint16_t{});
  } else {
    f(float{});
  }
}
/// Calls f(a constant) for what is encoded.
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
/// Calls f(parameter) with the smaller of two parameters that hold the parts.
template <typename F>
void with_parts(const std::vector<const void*>& parts, F f) {
  const auto fill = [&](auto into) {
    std::copy(parts.begin(), parts.end(), into.of);
    into.count = static_cast<int>(parts.size());
    f(into);
  };
  if (parts.size() <= kFewParts) {
    fill(Parts<kFewParts>{});
  } else {
    fill(Parts<kManyParts>{});
  }
}

/// True where words of four elements of `bytes` start on their boundaries. Codes do as soon as the factors
/// before them lie on theirs.
bool moves_words(const void* at, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(at) % (kQuad * bytes) == 0;
}
bool moves_words(const void* at, Wire wire) {
  return moves_words(at, wire == Wire::f32 ? 4 : (wire == Wire::bf16 ? 2 : 1));
}

unsigned grid_for(const Stream& stream, std::int64_t count, int quads = kQuads) {
  return grid_of(stream, count, static_cast<std::int64_t>(kThreads / kWarp) * quads * kWireBlock);
}

template <int most>
void launch_tree(Stream& stream, const SumTreeWork& w) {
  Tree<most> tree{};
  std::copy(w.addends.begin(), w.addends.end(), tree.of);
  std::copy(w.merges.begin(), w.merges.end(), tree.merges);
  tree.count = static_cast<int>(w.addends.size());
  std::size_t height = 0, levels = 0;  // of sums below the top
  for (std::size_t a = 0; a < w.merges.size(); ++a) {
    if (a > 0) levels = std::max(levels, ++height);
    height -= static_cast<std::size_t>(w.merges[a]);
  }
  // As many threads as have room for their stacks; single elements where that would be fewer than a warp has.
  constexpr std::size_t room = 48 * 1024;
  unsigned threads = kThreads;
  while (threads > kWarp && levels * threads * kQuad * sizeof(float) > room) threads /= 2;
  const bool quads = levels * threads * kQuad * sizeof(float) <= room;
  const int n = quads ? kQuad : 1;
  const std::size_t shared = levels * threads * static_cast<std::size_t>(n) * sizeof(float);
  const auto kernel = quads ? tree_kernel<most, kQuad> : tree_kernel<most, 1>;
  const bool vector = moves_words(w.args.to, sizeof(float)) &&
                      std::all_of(w.addends.begin(), w.addends.end(),
                                  [](const float* x) { return moves_words(x, sizeof(float)); });
  CUstream_st* const native = octet::cuda::native(stream);
  if (shared > room) {
    octet::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of sum_tree");
  }
  const unsigned grid = grid_of(stream, w.args.count, static_cast<std::int64_t>(threads) * n,
                                static_cast<int>(std::min(2048 / threads, 32u)));
  kernel<<<grid, threads, shared, native>>>(tree, w.args.to, w.args.count, vector);
}

template <typename Two>
void launch_combine(Stream& stream, const CombineWork& w) {
  with_parts(w.parts, [&](const auto& parts) {
    combine_kernel<Two>
        <<<grid_of(stream, w.args.count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(
            parts, static_cast<typename Two::Type*>(w.args.to), w.args.count);
  });
}

}  // namespace

void encode_values(Stream& stream, const EncodeArgs& a) {
  if (a.count == 0) return;
  const bool vector = moves_words(a.from, size_of(a.dtype)) && moves_words(a.to, a.wire) &&
                      moves_words(a.residual, sizeof(*a.residual));
  const auto launch = [&](auto wire, auto element, auto residual) {
    using E = decltype(element);
    constexpr Residual how = decltype(residual)::value;
    encode_kernel<decltype(wire)::value, E, how>
        <<<grid_for(stream, a.count, kQuadsOfEncode<E, how>), kThreads, 0, octet::cuda::native(stream)>>>(
            a, vector);
  };
  with_narrow(a.wire, [&](auto wire) {
    with_values(a.dtype, [&](auto element) {
      if (a.residual == nullptr) {
        launch(wire, element, std::integral_constant<Residual, Residual::none>{});
      } else if (a.adds_residual) {
        launch(wire, element, std::integral_constant<Residual, Residual::adds>{});
      } else {
        launch(wire, element, std::integral_constant<Residual, Residual::keeps>{});
      }
    });
  });
  octet::cuda::check_launch("encode_values");
}

void decode_values(Stream& stream, const DecodeArgs& a) {
  if (a.count == 0) return;
  const bool vector = moves_words(a.part, a.wire) && moves_words(a.to, size_of(a.dtype));
  with_narrow(a.wire, [&](auto wire) {
    with_values(a.dtype, [&](auto element) {
      constexpr Wire of = decltype(wire)::value;
      decode_kernel<of, decltype(element)>
          <<<grid_for(stream, a.count, kQuadsOfDecode<of>), kThreads, 0, octet::cuda::native(stream)>>>(
              a, vector);
    });
  });
  octet::cuda::check_launch("decode_values");
}

void sum_parts(Stream& stream, const SumPartsWork& w) {
  const SumPartsArgs& a = w.args;
  if (a.count == 0) return;
  const bool vector =
      moves_words(a.to, size_of(a.to_dtype)) &&
      std::all_of(w.parts.begin(), w.parts.end(), [&](const void* p) { return moves_words(p, a.wire); });
  with_parts(w.parts, [&](const auto& parts) {
    with_wire(a.wire, [&](auto wire) {
      with_values(a.to_dtype, [&](auto element) {
        using E = decltype(element);
        sum_kernel<decltype(wire)::value, E>
            <<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(
                parts, static_cast<E*>(a.to), a.count, a.accumulate, vector);
      });
    });
  });
  octet::cuda::check_launch("sum_parts");
}

void sum_tree(Stream& stream, const SumTreeWork& w) {
  if (w.args.count == 0) return;
  if (w.addends.size() <= kFewParts) {
    launch_tree<kFewParts>(stream, w);
  } else {
    launch_tree<kManyParts>(stream, w);
  }
  octet::cuda::check_launch("sum_tree");
}

void combine_parts(Stream& stream, const CombineWork& w) {
  if (w.args.count == 0) return;
  switch (w.args.how) {
    case Combine::max_f32:
      launch_combine<Larger>(stream, w);
      break;
    case Combine::sum_i64:
      launch_combine<IntegerSum>(stream, w);
      break;
    case Combine::sum_f64:
      launch_combine<DoubleSum>(stream, w);
      break;
  }
  octet::cuda::check_launch("combine_parts");
}

}  // namespace octet::ops::cuda
