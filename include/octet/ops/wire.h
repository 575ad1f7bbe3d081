// Conversions of values for reductions and gathers: encoding in the narrow formats of a wire, decoding, and
// sums over ranks in a fixed order. Sums are fp32 for every wire format. In FP8 they would be rounded at
// every rank, so each value is rounded only once, by its sender.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "octet/ops/types.h"

namespace octet::ops {

/// Format of values in transfer. bf16: rounded to nearest even. fp8, int8: blocks of kWireBlock elements
/// share one fp32 factor, which is the largest magnitude over 448 (E4M3) or 127. A block with an infinity or
/// a NaN arrives as NaN, so the receiver notices it. The encoding holds first the factors of all blocks, then
/// one byte per element.
enum class Wire { f32, bf16, fp8, int8 };

/// Number of elements that share one factor in the block formats.
inline constexpr std::int64_t kWireBlock = 128;

/// Returns the number of blocks of `count` elements. The last block may be short.
constexpr std::int64_t wire_blocks(std::int64_t count) {
  return (count + kWireBlock - 1) / kWireBlock;
}
/// Returns the bytes of `count` encoded elements.
std::size_t wire_bytes(Wire wire, std::int64_t count);

/// Returns the wire format for values of `dtype` (f32 or bf16): bf16 values on the f32 wire travel as bf16,
/// which is lossless.
constexpr Wire wire_of_values(Wire wire, DType dtype) {
  return wire == Wire::f32 && dtype == DType::bf16 ? Wire::bf16 : wire;
}
/// True if values of `dtype` travel on `wire` without encoding.
constexpr bool travels_as_it_lies(Wire wire, DType dtype) {
  return wire == (dtype == DType::bf16 ? Wire::bf16 : Wire::f32);
}

// Each op has two overloads. One takes a stream of a device. The other works on host memory and runs on the
// calling thread only, before it returns (for the communication thread of CPU ranks). Both overloads, and the
// CPU and the GPU, give the same bits. A NaN in a result is always the same quiet NaN. Arrays are aligned to
// their elements, and block formats to their factors (4 bytes). 16-byte alignment is fastest.

/// Encodes values for the wire. Not for the f32 wire, which needs no encoding.
struct EncodeArgs {
  Wire wire = Wire::bf16;
  const void* from = nullptr;  ///< [count]
  DType dtype = DType::f32;    ///< of `from`: f32 or bf16
  std::int64_t count = 0;
  void* to = nullptr;  ///< wire_bytes(wire, count) bytes, aligned to 4 bytes
  /// [count] bf16: added to the values before encoding, and replaced by the rounding error of the encoding (0
  /// if the error is not finite). Null: no residual.
  std::uint16_t* residual = nullptr;
  bool adds_residual = true;  ///< false: values are encoded without the residual, and the rounding error is
                              ///< added to the residual
};
void encode_values(const EncodeArgs& args);
void encode_values(Stream& stream, const EncodeArgs& args);

/// Decodes wire values to `dtype` (f32, or bf16, to which the fp32 values are rounded). Not for the f32 wire.
struct DecodeArgs {
  Wire wire = Wire::bf16;
  const void* part = nullptr;  ///< [count] as encoded
  std::int64_t count = 0;
  DType dtype = DType::f32;
  void* to = nullptr;  ///< [count]
};
void decode_values(const DecodeArgs& args);
void decode_values(Stream& stream, const DecodeArgs& args);

/// to[i] = (accumulate ? to[i] : 0) + (((part0 + part1) + part2) + …). Each part is decoded to fp32. The fp32
/// result is rounded to `to_dtype`.
struct SumPartsArgs {
  Wire wire = Wire::f32;
  std::span<const void* const> parts;  ///< by rank, [count] encoded; on a stream at most kMostParts
  void* to = nullptr;           ///< [count]; may be one of the parts if that part is stored in `to_dtype`
  DType to_dtype = DType::f32;  ///< f32 or bf16
  std::int64_t count = 0;
  bool accumulate = false;
};
inline constexpr std::size_t kMostParts = 1024;
void sum_parts(const SumPartsArgs& args);
void sum_parts(Stream& stream, const SumPartsArgs& args);

/// to[i] = the sum of addends[.][i] in the order of a tree. Addends are pushed on a stack one by one. After
/// the i-th push, the two top sums are replaced by their sum merges[i] times, with the lower sum as the first
/// operand. One sum remains at the end. fp32.
struct SumTreeArgs {
  std::span<const float* const> addends;  ///< each [count]; on a stream at most kMostParts
  std::span<const int> merges;            ///< as many as addends
  float* to = nullptr;                    ///< [count]; may be one of the addends
  std::int64_t count = 0;
};
void sum_tree(const SumTreeArgs& args);
void sum_tree(Stream& stream, const SumTreeArgs& args);

/// How a small value of all ranks is combined. max: fp32, NaN wins. sum of integers: two's complement. sum of
/// doubles: in the order of the parts.
enum class Combine { max_f32, sum_i64, sum_f64 };
/// Returns the bytes of one value of this kind.
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
