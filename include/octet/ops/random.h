#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// out[i] = deviation * normal(seed, RandomUse::init, first + i) (base/random.h), so that an element has its
/// value whoever makes it, in one piece or in several. The CPU gives the bits of that function; a GPU
/// computes the same expression with its own logarithm and cosine, which leaves an element in some thousands
/// on the next float.
///
/// Columns of a matrix are made at once: with `width` > 0 the elements are those of rows of `width`, which
/// lie `pitch` apart in the numbering, and the first one lies in column `column` of these; element i then has
/// the number first + i + (column + i) / width * (pitch - width).
struct RandomNormalArgs {
  std::uint64_t seed = 0;
  std::uint64_t first = 0;
  std::int64_t width = 0;  ///< 0: one run
  std::int64_t pitch = 0;  ///< at least `width`
  std::int64_t column = 0;
  float deviation = 1.0f;
  void* out = nullptr;  ///< [count] f32 or bf16 (rounded to nearest even)
  DType dtype = DType::f32;
  std::int64_t count = 0;
};
/// The number of element i.
constexpr std::uint64_t number_of(const RandomNormalArgs& a, std::int64_t i) {
  const std::int64_t skipped = a.width > 0 ? (a.column + i) / a.width * (a.pitch - a.width) : 0;
  return a.first + static_cast<std::uint64_t>(i + skipped);
}
void random_normal(Stream& stream, const RandomNormalArgs& args);

}  // namespace octet::ops
