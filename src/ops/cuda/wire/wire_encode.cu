// Encodes values for a wire: as bf16, or as codes with a factor per block.
#include "cuda/wire/wire_tiles.cuh"

namespace octet::ops::cuda {
namespace {

using namespace wires;

/// A factor, and its inverse if quotients can be computed from the inverse. The inverse is 0 if the factor is
/// too close to the limits of fp32.
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

/// Returns the quotient that a division gives, except for the sign of a zero and for values far below 2^-10,
/// which every format here rounds to 0. The inverse is rounded to nearest. A quotient within one unit of the
/// exact quotient is corrected by its remainder to the nearest (Markstein 1990, "Computation of elementary
/// functions on the IBM RISC System/6000 processor").
__device__ inline float quotient(float x, const Factor& f) {
  const float first = __fmul_rn(x, f.inverse);
  const float close = __fmaf_rn(__fmaf_rn(-first, f.scale, x), f.inverse, first);
  return __fmaf_rn(__fmaf_rn(-close, f.scale, x), f.inverse, close);
}

/// Converts four floats to E4M3.
__device__ inline unsigned fp8_word(const float (&y)[kQuad]) {
  return to_fp8_pair(y[0], y[1], true) | (to_fp8_pair(y[2], y[3], true) << 16);
}

/// Converts four floats with magnitudes of at most 127.5 to bytes. Adding 1.5 * 2^23 rounds to nearest even,
/// and the last byte of this constant is 0.
__device__ inline unsigned int8_word(const float (&y)[kQuad]) {
  unsigned bits[kQuad];
#pragma unroll
  for (int k = 0; k < kQuad; ++k) bits[k] = __float_as_uint(__fadd_rn(y[k], 0x1.8p23f));
  const unsigned low = __byte_perm(bits[0], bits[1], 0x0040u);
  const unsigned high = __byte_perm(bits[2], bits[3], 0x0040u);
  return __byte_perm(low, high, 0x5410u);
}

template <Wire wire>
__device__ inline unsigned encode_word(const float (&x)[kQuad], const Factor& f) {
  // All zero, or not finite: the factor is the value, so the code is 1.
  if (!(f.scale > 0.0f)) return wire == Wire::fp8 ? 0x38383838u : 0x01010101u;
  float y[kQuad];
  if (f.inverse != 0.0f) {
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      y[k] = quotient(x[k], f);
      if constexpr (wire == Wire::fp8) y[k] = copysignf(y[k], x[k]);  // int8 has no signed zero
    }
  } else {
#pragma unroll
    for (int k = 0; k < kQuad; ++k) {
      y[k] = __fdiv_rn(x[k], f.scale);
      // The largest quotient is 127 up to rounding, unless the factor is near the lower end of fp32 and has
      // few bits.
      if constexpr (wire == Wire::int8) y[k] = fmaxf(-127.0f, fminf(127.0f, y[k]));
    }
  }
  if constexpr (wire == Wire::fp8) {
    return fp8_word(y);
  } else {
    return int8_word(y);
  }
}

enum class Residual { none, adds, keeps };

template <typename E, Residual residual>
constexpr int kQuadsOfEncode = sizeof(E) == 2 && residual == Residual::none ? kQuadsOfNarrow : kQuads;

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
      // Each lane computes the factor of one block. Then all lanes get all factors.
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

// Decodes received wire data to values.

namespace {

using namespace wires;

template <Wire wire>
constexpr int kQuadsOfDecode = wire == Wire::fp8 || wire == Wire::int8 ? kQuadsOfNarrow : kQuads;

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

}  // namespace

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

}  // namespace octet::ops::cuda
