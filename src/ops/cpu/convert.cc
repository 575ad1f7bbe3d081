#include "cpu/convert.h"

#include <cstring>

#include "cpu/simd.h"
#include "octet/base/error.h"

namespace octet::ops::cpu {

namespace {

/// Exact value of an FP8 number with `mantissa` mantissa bits and exponent bias `bias`, without branches and
/// without a subnormal float on the way (which costs a hundred cycles on some processors).
template <int mantissa, std::uint32_t bias>
OCTET_INLINE std::uint32_t fp8_float_bits(std::uint8_t x) {
  const std::uint32_t magnitude = x & 0x7Fu;
  const std::uint32_t placed = magnitude << (23 - mantissa);
  // A subnormal m counts m * 2^(1 - bias - mantissa): the fraction of 2^(1 - bias) * (1 + m / 2^mantissa).
  constexpr std::uint32_t one = (127 + 1 - bias) << 23;
  const float small = std::bit_cast<float>(one | placed) - std::bit_cast<float>(one);
  const std::uint32_t normal = placed + ((127 - bias) << 23);
  std::uint32_t bits = magnitude < (1u << mantissa) ? std::bit_cast<std::uint32_t>(small) : normal;
  if constexpr (mantissa == 3) {  // E4M3: one NaN, no infinity
    bits = magnitude == 0x7Fu ? 0x7FC00000u : bits;
  } else {  // E5M2: the top exponent is infinity and NaN
    bits = magnitude >= 0x7Cu ? (0x7F800000u | placed) : bits;
  }
  return bits | (static_cast<std::uint32_t>(x & 0x80u) << 24);
}

template <int mantissa, std::uint32_t bias>
OCTET_INLINE void decode_bf16(const std::uint8_t* from, Bf16* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i].bits = static_cast<std::uint16_t>(fp8_float_bits<mantissa, bias>(from[i]) >> 16);
  }
}

template <int mantissa, std::uint32_t bias>
OCTET_INLINE void decode_f32(const std::uint8_t* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i] = std::bit_cast<float>(fp8_float_bits<mantissa, bias>(from[i]));
  }
}

OCTET_SIMD void e4m3_to_bf16(const std::uint8_t* from, Bf16* to, std::int64_t count) {
  decode_bf16<3, 7>(from, to, count);
}
OCTET_SIMD void e5m2_to_bf16(const std::uint8_t* from, Bf16* to, std::int64_t count) {
  decode_bf16<2, 15>(from, to, count);
}
OCTET_SIMD void e4m3_to_f32(const std::uint8_t* from, float* to, std::int64_t count) {
  decode_f32<3, 7>(from, to, count);
}
OCTET_SIMD void e5m2_to_f32(const std::uint8_t* from, float* to, std::int64_t count) {
  decode_f32<2, 15>(from, to, count);
}
OCTET_SIMD void bf16_to_f32(const Bf16* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = simd::load(from[i]);
}

/// Threads share blocks of this many elements.
constexpr std::int64_t block = 4096;

template <typename From, typename To, typename Convert>
void convert(const From* from, To* to, std::int64_t count, Convert one) {
  simd::parallel_rows((count + block - 1) / block, block / 4, [=](std::int64_t begin, std::int64_t end) {
    one(from + begin * block, to + begin * block, std::min(end * block, count) - begin * block);
  });
}

}  // namespace

void fp8_to_bf16(const std::uint8_t* from, DType format, Bf16* to, std::int64_t count) {
  check(is_fp8(format), "fp8_to_bf16: the source is FP8");
  convert(from, to, count, format == DType::e4m3 ? e4m3_to_bf16 : e5m2_to_bf16);
}

void to_f32(const void* from, DType dtype, float* to, std::int64_t count) {
  switch (dtype) {
    case DType::f32:
      if (count > 0) std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case DType::bf16:
      return convert(static_cast<const Bf16*>(from), to, count, bf16_to_f32);
    case DType::e4m3:
      return convert(static_cast<const std::uint8_t*>(from), to, count, e4m3_to_f32);
    case DType::e5m2:
      return convert(static_cast<const std::uint8_t*>(from), to, count, e5m2_to_f32);
    default:
      check(false, "to_f32: the source is f32, bf16 or FP8");
  }
}

}  // namespace octet::ops::cpu
