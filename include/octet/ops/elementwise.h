// Ops on single elements: conversions, sums, fills, and random numbers.
#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// to[i] = from[i] between f32, bf16 and f16 (round to nearest even).
void convert(Stream& stream, const void* from, DType from_dtype, void* to, DType to_dtype,
             std::int64_t count);

/// to[i] += from[i] in fp32; `to` is f32, `from` f32 or bf16.
void add(Stream& stream, const void* from, DType from_dtype, float* to, std::int64_t count);

/// x[i] = value.
void fill(Stream& stream, float* x, float value, std::int64_t count);

/// x[i] *= *factor in fp32, rounded once. `x`: [rows, cols] f32 or bf16, dense. `factor`: one f32 in device
/// memory.
void scale_by(Stream& stream, const Matrix& x, const float* factor);

/// out[i] = deviation * normal(seed, RandomUse::init, first + i) (base/random.h). The value of an element
/// does not depend on the rank that computes it, or on the split into pieces. The CPU gives the bits of that
/// function. A GPU uses its own logarithm and cosine, so about one element in some thousands is the
/// neighbouring float.
///
/// Can compute a range of columns of a matrix. If `width` > 0, the elements belong to rows of `width`
/// elements. The numbers of consecutive rows are `pitch` apart, and element 0 is in column `column`. Element
/// i then has the number first + i + (column + i) / width * (pitch - width).
struct RandomNormalArgs {
  std::uint64_t seed = 0;
  std::uint64_t first = 0;
  std::int64_t width = 0;  ///< 0: consecutive numbers
  std::int64_t pitch = 0;  ///< at least `width`
  std::int64_t column = 0;
  float deviation = 1.0f;
  void* out = nullptr;  ///< [count] f32 or bf16 (rounded to nearest even)
  DType dtype = DType::f32;
  std::int64_t count = 0;
};
/// Returns the number of element i.
constexpr std::uint64_t number_of(const RandomNormalArgs& a, std::int64_t i) {
  const std::int64_t skipped = a.width > 0 ? (a.column + i) / a.width * (a.pitch - a.width) : 0;
  return a.first + static_cast<std::uint64_t>(i + skipped);
}
void random_normal(Stream& stream, const RandomNormalArgs& args);

}  // namespace octet::ops
