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

/// The same for values that lie as f32 or bf16, and with what earlier roundings lost.
struct EncodeArgs {
  Wire wire = Wire::bf16;
  const void* from = nullptr;  ///< [count]
  DType dtype = DType::f32;    ///< of `from`: f32 or bf16
  std::int64_t count = 0;
  void* to = nullptr;  ///< wire_bytes(wire, count) bytes
  /// [count] bf16: is added to the values, and replaced by what their rounding loses (0 where that is not
  /// finite). Null: none.
  std::uint16_t* residual = nullptr;
  bool adds_residual = true;  ///< false: values are encoded as they are, and what is lost is added to it
};
void encode_values(const EncodeArgs& args);
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
