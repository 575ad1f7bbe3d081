// Conversions of whole arrays between element types, on the caller's op threads.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"

namespace octet::ops::cpu {

/// f32, bf16 or FP8 -> f32, exact.
void to_f32(const void* from, DType dtype, float* to, std::int64_t count);
/// FP8 -> bf16, exact (both formats are subsets).
void fp8_to_bf16(const std::uint8_t* from, DType format, Bf16* to, std::int64_t count);

}  // namespace octet::ops::cpu
