#include "cpu/convert_arrays.h"

#include <bit>
#include <cstring>

#include "cpu/simd.h"
#include "octet/base/error.h"
#include "octet/base/fp8_vector.h"

namespace octet::ops::cpu {

namespace {

template <typename F>
OCTET_INLINE void decode_bf16(const std::uint8_t* from, Bf16* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) {
    to[i].bits = static_cast<std::uint16_t>(decode_fp8<F>(from[i]) >> 16);
  }
}

template <typename F>
OCTET_INLINE void decode_f32(const std::uint8_t* from, float* to, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) to[i] = std::bit_cast<float>(decode_fp8<F>(from[i]));
}

OCTET_SIMD void e4m3_to_bf16(const std::uint8_t* from, Bf16* to, std::int64_t count) {
  decode_bf16<E4M3>(from, to, count);
}
OCTET_SIMD void e5m2_to_bf16(const std::uint8_t* from, Bf16* to, std::int64_t count) {
  decode_bf16<E5M2>(from, to, count);
}
OCTET_SIMD void e4m3_to_f32(const std::uint8_t* from, float* to, std::int64_t count) {
  decode_f32<E4M3>(from, to, count);
}
OCTET_SIMD void e5m2_to_f32(const std::uint8_t* from, float* to, std::int64_t count) {
  decode_f32<E5M2>(from, to, count);
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
