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

}  // namespace octet::ops
