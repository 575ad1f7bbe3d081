// How values of a reduction travel, and how they are summed on arrival: in fp32, in rank order, whatever the
// wire. Sums in FP8 would lose a rounding at every rank; so a value is rounded once, where it leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "octet/comm/communicator.h"

namespace octet::comm {

/// Elements that share one scale in the block formats (fp8, int8). Chunks of a slice start at its multiples.
inline constexpr std::int64_t wire_block = 128;

/// Bytes of `count` elements on the wire.
std::size_t wire_bytes(Wire wire, std::int64_t count);

/// Writes wire_bytes(wire, count) bytes to `to`. Not for f32, which travels as it lies.
/// A block of fp8 or int8 that holds an infinity or a NaN arrives as NaN, so that it is seen and not clipped.
void encode(Wire wire, const float* from, std::int64_t count, void* to);

/// The same for values that lie as `dtype`, f32 or bf16.
void encode_values(Wire wire, DType dtype, const void* from, std::int64_t count, void* to);
/// Decodes `count` encoded elements into values of `dtype`.
void decode_values(Wire wire, const void* part, std::int64_t count, DType dtype, void* to);

struct SumArgs {
  Wire wire = Wire::f32;
  std::span<const void* const> parts;  ///< by rank, [count] as encoded
  void* to = nullptr;                  ///< [count]; may be a part of a wire in its dtype
  DType to_dtype = DType::f32;         ///< f32 or bf16
  std::int64_t count = 0;
  bool accumulate = false;
};
/// to[i] = (accumulate ? to[i] : 0) + (((part0 + part1) + part2) + …), each decoded to fp32.
void sum_parts(const SumArgs& args);

/// The wire of values that lie as `dtype`, where nothing is lost by sending them as they lie.
constexpr Wire wire_of_values(Wire wire, DType dtype) {
  return wire == Wire::f32 && dtype == DType::bf16 ? Wire::bf16 : wire;
}
/// True where values of `dtype` are what travels on `wire`.
constexpr bool travels_as_it_lies(Wire wire, DType dtype) {
  return wire == (dtype == DType::bf16 ? Wire::bf16 : Wire::f32);
}

}  // namespace octet::comm
