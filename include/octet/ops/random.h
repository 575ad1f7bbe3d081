#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// out[i] = deviation * normal(seed, RandomUse::init, first + i) (base/random.h), so that an element has its
/// value whoever makes it, in one piece or in several. The CPU gives the bits of that function; a GPU
/// computes the same expression with its own logarithm and cosine, which leaves an element in some thousands
/// on the next float.
struct RandomNormalArgs {
  std::uint64_t seed = 0;
  std::uint64_t first = 0;
  float deviation = 1.0f;
  void* out = nullptr;  ///< [count] f32 or bf16 (rounded to nearest even)
  DType dtype = DType::f32;
  std::int64_t count = 0;
};
void random_normal(Stream& stream, const RandomNormalArgs& args);

}  // namespace octet::ops
