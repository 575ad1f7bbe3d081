#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

// NF4, the 4-bit format of QLoRA (Dettmers et al. 2023, arXiv:2305.14314), in the very bytes that
// bitsandbytes makes on CUDA. A tensor is taken flat, as it stands in a file, in blocks of 64 elements that
// share a scale, their largest magnitude; an element is the nearest of 16 values, times the scale. Scales are
// fp32, or, with double quantisation, of 8 bits themselves: minus the mean of all scales of the tensor, in
// blocks of 256 that share the largest magnitude, each the nearest of 256 values. 4.5 and 4.127 bits an
// element.
inline constexpr std::int64_t kNf4Block = 64;
inline constexpr std::int64_t kNf4ScaleBlock = 256;

/// Bytes of the codes of a tensor: two elements a byte, the first one in the upper half.
constexpr std::int64_t nf4_code_bytes(std::int64_t count) {
  return (count + 1) / 2;
}
/// Scales of a tensor; the last block may be short.
constexpr std::int64_t nf4_blocks(std::int64_t count) {
  return (count + kNf4Block - 1) / kNf4Block;
}
/// Blocks of scales of a tensor with double quantisation.
constexpr std::int64_t nf4_scale_blocks(std::int64_t count) {
  return (nf4_blocks(count) + kNf4ScaleBlock - 1) / kNf4ScaleBlock;
}

/// The 16 values of codes; ascending, 7 is zero.
const float* nf4_values();
/// The 256 values of codes of scales, ascending: bitsandbytes' dynamic map of signed numbers (Dettmers et al.
/// 2022, arXiv:2110.02861).
const float* nf4_scale_values();

/// Codes and scales of a tensor. The reciprocal of a scale is rounded to fp32 before values are multiplied by
/// it; between two values an element takes the lower. What is not finite has no meaning here: its block is
/// undefined.
struct Nf4QuantizeArgs {
  const void* x = nullptr;   ///< [count] in `dtype`
  DType dtype = DType::f32;  ///< f32 or bf16
  std::int64_t count = 0;
  std::uint8_t* codes = nullptr;  ///< [nf4_code_bytes(count)]; half a byte that is left over is that of a 0
  float* scales = nullptr;        ///< [nf4_blocks(count)]
};
void nf4_quantize(Stream& stream, const Nf4QuantizeArgs& args);

/// The second quantisation. The mean is summed in fp64, in runs of 256 whose sums are added in order.
struct Nf4QuantizeScalesArgs {
  const float* scales = nullptr;  ///< [blocks]
  std::int64_t blocks = 0;        ///< at least 1
  std::uint8_t* codes = nullptr;  ///< [blocks]
  float* nested = nullptr;        ///< [blocks of scales], the scales of scales
  float* mean = nullptr;          ///< device scalar
};
void nf4_quantize_scales(Stream& stream, const Nf4QuantizeScalesArgs& args);

/// The scales of a tensor as they lie: either `plain`, or the other three.
struct Nf4Scales {
  const float* plain = nullptr;         ///< [blocks]
  const std::uint8_t* codes = nullptr;  ///< [blocks]
  const float* nested = nullptr;        ///< [blocks of scales]
  const float* mean = nullptr;          ///< device scalar
};

/// What codes stand for: value times scale in fp32, rounded once to `dtype`. A part of a tensor begins at a
/// block; `codes` and `scales` are those of the whole tensor.
struct Nf4DecodeArgs {
  const std::uint8_t* codes = nullptr;
  Nf4Scales scales;
  std::int64_t begin = 0;  ///< a multiple of 64
  std::int64_t count = 0;
  void* to = nullptr;        ///< [count] in `dtype`: element `begin` comes first
  DType dtype = DType::f32;  ///< f32 or bf16
};
void nf4_decode(Stream& stream, const Nf4DecodeArgs& args);

/// Codes of a whole matrix as FP8 operands of products: what nf4_decode makes of them in `through`,
/// multiplied by *scale and cast (saturating), in one pass and without amax. Either layout may be null.
struct Nf4ToFp8Args {
  const std::uint8_t* codes = nullptr;
  Nf4Scales scales;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  DType through = DType::f32;          ///< f32 or bf16
  DType format = DType::e4m3;          ///< or e5m2
  const float* scale = nullptr;        ///< device scalar
  std::uint8_t* row = nullptr;         ///< [rows, cols], dense
  std::uint8_t* transposed = nullptr;  ///< [cols, rows]
  std::int64_t transposed_ld = 0;      ///< from one row of it to the next: at least `rows`
};
void nf4_to_fp8(Stream& stream, const Nf4ToFp8Args& args);

}  // namespace octet::ops
