// What reductions and gathers do with values before they travel and when they have arrived: encoding in the
// narrow formats of a wire, decoding, and sums over ranks in a fixed order. Sums are fp32 whatever the wire:
// in FP8 they would lose a rounding at every rank, so a value is rounded once, where it leaves.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "octet/ops/types.h"

namespace octet::ops {

/// In which format values travel. bf16: rounded to nearest even. fp8, int8: blocks of kWireBlock elements
/// that share one fp32 factor, the largest magnitude over 448 (E4M3) or 127; a block that holds an infinity
/// or a NaN arrives as NaN, so that it is seen and not clipped. On the wire the factors of all blocks lie
/// first, then one byte an element.
enum class Wire { f32, bf16, fp8, int8 };

/// Elements that share one factor in the block formats.
inline constexpr std::int64_t kWireBlock = 128;

/// Blocks of `count` elements, the last of which may be short.
constexpr std::int64_t wire_blocks(std::int64_t count) {
  return (count + kWireBlock - 1) / kWireBlock;
}
/// Bytes of `count` elements on the wire.
std::size_t wire_bytes(Wire wire, std::int64_t count);

/// The wire of values that lie as `dtype` (f32 or bf16), where nothing is lost by sending them as they lie.
constexpr Wire wire_of_values(Wire wire, DType dtype) {
  return wire == Wire::f32 && dtype == DType::bf16 ? Wire::bf16 : wire;
}
/// True where values of `dtype` are what travels on `wire`.
constexpr bool travels_as_it_lies(Wire wire, DType dtype) {
  return wire == (dtype == DType::bf16 ? Wire::bf16 : Wire::f32);
}

// Each op comes twice: on a stream of a device, and without one on memory of the host, where it runs before
// the call returns on the calling thread alone (for the communication thread of CPU ranks). Both, and the CPU
// and the GPU, give the same bits; a NaN in a result is always the same one, the quiet NaN. Arrays lie on
// boundaries of their elements, block formats on those of their factors, 4 bytes; on 16 they are fastest.

/// Values to what travels. Not for the f32 wire, which is not encoded.
struct EncodeArgs {
  Wire wire = Wire::bf16;
  const void* from = nullptr;  ///< [count]
  DType dtype = DType::f32;    ///< of `from`: f32 or bf16
  std::int64_t count = 0;
  void* to = nullptr;  ///< wire_bytes(wire, count) bytes, on a 4-byte boundary
  /// [count] bf16: is added to the values, and replaced by what their rounding loses (0 where that is not
  /// finite). Null: none.
  std::uint16_t* residual = nullptr;
  bool adds_residual = true;  ///< false: values are encoded as they are, and what is lost is added to it
};
void encode_values(const EncodeArgs& args);
void encode_values(Stream& stream, const EncodeArgs& args);

/// What travelled to values of `dtype` (f32, or bf16, to which the fp32 values are rounded). Not for the f32
/// wire.
struct DecodeArgs {
  Wire wire = Wire::bf16;
  const void* part = nullptr;  ///< [count] as encoded
  std::int64_t count = 0;
  DType dtype = DType::f32;
  void* to = nullptr;  ///< [count]
};
void decode_values(const DecodeArgs& args);
void decode_values(Stream& stream, const DecodeArgs& args);

/// to[i] = (accumulate ? to[i] : 0) + (((part0 + part1) + part2) + …), each decoded to fp32; the fp32 result
/// is rounded to `to_dtype`.
struct SumPartsArgs {
  Wire wire = Wire::f32;
  std::span<const void* const> parts;  ///< by rank, [count] as encoded; on a stream at most kMostParts
  void* to = nullptr;                  ///< [count]; may be one of the parts, where that one lies in its dtype
  DType to_dtype = DType::f32;         ///< f32 or bf16
  std::int64_t count = 0;
  bool accumulate = false;
};
inline constexpr std::size_t kMostParts = 1024;
void sum_parts(const SumPartsArgs& args);
void sum_parts(Stream& stream, const SumPartsArgs& args);

/// to[i] = the sum of addends[.][i] in the order of a tree: addends are put on a stack one after the other,
/// and after the i-th the two sums on top are added merges[i] times, the lower one first. One sum is left at
/// the end. fp32.
struct SumTreeArgs {
  std::span<const float* const> addends;  ///< each [count]; on a stream at most kMostParts
  std::span<const int> merges;            ///< as many
  float* to = nullptr;                    ///< [count]; may be one of the addends
  std::int64_t count = 0;
};
void sum_tree(const SumTreeArgs& args);
void sum_tree(Stream& stream, const SumTreeArgs& args);

/// How a small value of all ranks becomes one. max: fp32, NaN wins. sum of integers: two's complement. sum of
/// doubles: in the order of the parts.
enum class Combine { max_f32, sum_i64, sum_f64 };
/// Bytes of a value that is combined so.
constexpr std::size_t element_bytes(Combine how) {
  return how == Combine::max_f32 ? sizeof(float) : sizeof(double);
}

/// to[i] = parts[0][i] combined with parts[1][i], then with parts[2][i], …
struct CombineArgs {
  Combine how = Combine::max_f32;
  std::span<const void* const> parts;  ///< each [count]; on a stream at most kMostParts
  void* to = nullptr;                  ///< [count]; may be one of the parts
  std::int64_t count = 0;
};
void combine_parts(const CombineArgs& args);
void combine_parts(Stream& stream, const CombineArgs& args);

}  // namespace octet::ops
