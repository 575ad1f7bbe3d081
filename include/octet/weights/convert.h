// Conversion of runs of elements between dtypes. Pointers may be unaligned.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"

namespace octet::weights {

constexpr bool is_float(DType t) {
  return t == DType::f32 || t == DType::bf16 || t == DType::f16 || t == DType::f64 || is_fp8(t);
}

/// Converts `count` elements of a float dtype to float. f64 rounds to nearest even; the others are exact.
void to_float(DType dtype, const std::byte* from, std::int64_t count, float* out);
/// Like to_float(), but converts to bf16 (round to nearest even). bf16 is copied bit by bit.
void to_bf16(DType dtype, const std::byte* from, std::int64_t count, Bf16* out);
/// Converts `count` elements of an integer dtype or boolean to int64, exactly.
void to_int64(DType dtype, const std::byte* from, std::int64_t count, std::int64_t* out);
/// Converts `count` floats to a float dtype: round to nearest even, FP8 saturating.
void from_float(DType dtype, const float* from, std::int64_t count, std::byte* out);

}  // namespace octet::weights
