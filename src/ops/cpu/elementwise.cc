#include "octet/ops/elementwise.h"

#include <cstring>
#include <utility>

#include "cpu/rows.h"
#include "kernels.h"
#include "octet/base/random.h"

namespace octet::ops::cpu {
namespace {

// Storage of an IEEE half. The conversions are branch-free and give the bits of octet::to_f16 and from_f16.
struct F16 {
  std::uint16_t bits;
};

OCTET_INLINE float half_load(F16 x) {
  const std::uint32_t magnitude = x.bits & 0x7FFFu;
  // The bits as a float are too small by 2^112. The multiplication is exact and also handles subnormals.
  const float small = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const std::uint32_t special = 0x7F800000u | (magnitude > 0x7C00u ? 0x400000u : 0u) | (magnitude << 13);
  const std::uint32_t bits = magnitude >= 0x7C00u ? special : std::bit_cast<std::uint32_t>(small);
  return std::bit_cast<float>(bits | (static_cast<std::uint32_t>(x.bits & 0x8000u) << 16));
}
OCTET_INLINE void half_store(F16& to, float x) {
  const auto bits = std::bit_cast<std::uint32_t>(x);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFu;
  const std::uint32_t clamped = magnitude < 0x38800000u ? magnitude : 0x38800000u;
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(clamped) + 0.5f) - 0x3F000000u;
  const std::uint32_t normal = (magnitude - 0x38000000u + 0xFFFu + ((magnitude >> 13) & 1u)) >> 13;
  std::uint32_t code = magnitude < 0x38800000u ? subnormal : normal;
  code = magnitude >= 0x477FF000u ? 0x7C00u : code;
  code = magnitude > 0x7F800000u ? 0x7E00u : code;
  to.bits = static_cast<std::uint16_t>(code | ((bits >> 16) & 0x8000u));
}

template <typename T>
OCTET_INLINE float any_load(T x) {
  if constexpr (std::is_same_v<T, F16>) {
    return half_load(x);
  } else {
    return simd::load(x);
  }
}
template <typename T>
OCTET_INLINE void any_store(T& to, float x) {
  if constexpr (std::is_same_v<T, F16>) {
    half_store(to, x);
  } else {
    simd::store(to, x);
  }
}

template <typename From, typename To>
OCTET_SIMD void convert_range(const From* __restrict from, To* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) any_store(to[i], any_load(from[i]));
}

template <typename T>
OCTET_SIMD void add_range(const T* __restrict from, float* __restrict to, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) to[i] += simd::load(from[i]);
}

template <typename T>
OCTET_SIMD void scale_range(T* x, float factor, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) simd::store(x[i], simd::load(x[i]) * factor);
}

template <typename F>
void with_float_type(DType dtype, F f) {
  if (dtype == DType::f16) {
    f(F16{});
  } else {
    with_type(dtype, f);
  }
}

}  // namespace

void convert(const ConvertArgs& a) {
  with_float_type(a.from_dtype, [&](auto from_type) {
    with_float_type(a.to_dtype, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      simd::parallel_rows(a.count, 1, [&](std::int64_t begin, std::int64_t end) {
        const auto* from = static_cast<const From*>(a.from) + begin;
        auto* to = static_cast<To*>(a.to) + begin;
        if constexpr (std::is_same_v<From, To>) {
          std::memcpy(to, from, static_cast<std::size_t>(end - begin) * sizeof(To));
        } else {
          convert_range(from, to, end - begin);
        }
      });
    });
  });
}

void add(const AddArgs& a) {
  with_type(a.from_dtype, [&](auto type) {
    simd::parallel_rows(a.count, 1, [&](std::int64_t begin, std::int64_t end) {
      add_range(static_cast<const decltype(type)*>(a.from) + begin, a.to + begin, end - begin);
    });
  });
}

void fill(const FillArgs& a) {
  simd::parallel_rows(
      a.count, 1, [&](std::int64_t begin, std::int64_t end) { std::fill(a.x + begin, a.x + end, a.value); });
}

void scale_by(const ScaleByArgs& a) {
  with_type(a.dtype, [&](auto type) {
    simd::parallel_rows(a.count, 1, [&](std::int64_t begin, std::int64_t end) {
      scale_range(static_cast<decltype(type)*>(a.x) + begin, *a.factor, end - begin);
    });
  });
}

void random_normal(const RandomNormalArgs& a) {
  constexpr std::int64_t kWork = 64;  // cost of a logarithm, a cosine and ten rounds of the generator
  with_type(a.dtype, [&](auto type) {
    simd::parallel_rows(a.count, kWork, [&](std::int64_t begin, std::int64_t end) {
      auto* out = static_cast<decltype(type)*>(a.out);
      for (std::int64_t i = begin; i < end; ++i) {
        simd::store(out[i], a.deviation * normal(a.seed, RandomUse::init, number_of(a, i)));
      }
    });
  });
}

}  // namespace octet::ops::cpu
