// Runs of elements from one dtype to another. Pointers need no alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"

namespace octet::checkpoint {

constexpr bool is_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::f64 || is_fp8(t);
}

/// `count` elements of a float dtype at `from` to float. f64 rounds to nearest even; the rest is exact.
void to_float(DType dtype, const std::byte* from, std::int64_t count, float* out);
/// The same to bf16; bf16 itself is copied bit by bit.
void to_bf16(DType dtype, const std::byte* from, std::int64_t count, Bf16* out);
/// `count` elements of an integer dtype or boolean to int64, exact.
void to_int64(DType dtype, const std::byte* from, std::int64_t count, std::int64_t* out);
/// `count` floats to a float dtype at `out`: round to nearest even, FP8 saturating.
void from_float(DType dtype, const float* from, std::int64_t count, std::byte* out);

}  // namespace octet::checkpoint
