#pragma once

#include <span>

#include "octet/ops/types.h"

namespace octet::ops {

/// to[i] = from[i] between f32, bf16 and f16 (round to nearest even).
void convert(Stream& stream, const void* from, DType from_dtype, void* to, DType to_dtype,
             std::int64_t count);

/// to[i] += from[i] in fp32; `to` is f32, `from` f32 or bf16.
void add(Stream& stream, const void* from, DType from_dtype, float* to, std::int64_t count);

/// to[i] = (accumulate ? to[i] : 0) + (((parts[0][i] + parts[1][i]) + parts[2][i]) + …) in fp32: the sum over
/// ranks, in rank order. Parts are host pointers to device memory; `to` may be one of the parts.
struct SumInOrderArgs {
  std::span<const void* const> parts;
  DType dtype = DType::f32;  ///< of the parts: f32 or bf16
  float* to = nullptr;
  std::int64_t count = 0;
  bool accumulate = false;
};
void sum_in_order(Stream& stream, const SumInOrderArgs& args);

/// x[i] = value.
void fill(Stream& stream, float* x, float value, std::int64_t count);

}  // namespace octet::ops
