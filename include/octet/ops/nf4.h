#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

// NF4, the 4-bit format of QLoRA (Dettmers et al. 2023, arXiv:2305.14314), with exactly the bytes that
// bitsandbytes produces on CUDA. A tensor is read flat, in the element order of its file. Blocks of 64
// elements share a scale, which is their largest magnitude. An element is the nearest of 16 values, times the
// scale. Scales are fp32. With double quantisation they take 8 bits: the mean of all scales of the tensor is
// subtracted, and blocks of 256 scales share their largest magnitude. Each scale is then the nearest of 256
// values. An element takes 4.5 bits, or 4.127 bits with double quantisation.
inline constexpr std::int64_t kNf4Block = 64;
inline constexpr std::int64_t kNf4ScaleBlock = 256;

/// Returns the bytes of the codes of a tensor. A byte holds two elements, with the first in the upper half.
constexpr std::int64_t nf4_code_bytes(std::int64_t count) {
  return (count + 1) / 2;
}
/// Returns the number of scales of a tensor. The last block may be short.
constexpr std::int64_t nf4_blocks(std::int64_t count) {
  return (count + kNf4Block - 1) / kNf4Block;
}
/// Returns the number of blocks of scales of a tensor with double quantisation.
constexpr std::int64_t nf4_scale_blocks(std::int64_t count) {
  return (nf4_blocks(count) + kNf4ScaleBlock - 1) / kNf4ScaleBlock;
}

/// Returns the 16 values of the codes in ascending order. Code 7 is zero.
const float* nf4_values();
/// Returns the 256 values of the codes of scales in ascending order: bitsandbytes' dynamic map of signed
/// numbers (Dettmers et al. 2022, arXiv:2110.02861).
const float* nf4_scale_values();

/// Writes codes and scales of a tensor. The reciprocal of a scale is rounded to fp32 before values are
/// multiplied by it. An element at the middle of two values takes the lower. A block with a non-finite
/// element is undefined.
struct Nf4QuantizeArgs {
  const void* x = nullptr;   ///< [count] in `dtype`
  DType dtype = DType::f32;  ///< f32 or bf16
  std::int64_t count = 0;
  std::uint8_t* codes = nullptr;  ///< [nf4_code_bytes(count)]; an unused half byte encodes 0
  float* scales = nullptr;        ///< [nf4_blocks(count)]
};
void nf4_quantize(Stream& stream, const Nf4QuantizeArgs& args);

/// The second quantisation. The mean is summed in fp64, in runs of 256. The sums of the runs are added in
/// order.
struct Nf4QuantizeScalesArgs {
  const float* scales = nullptr;  ///< [blocks]
  std::int64_t blocks = 0;        ///< at least 1
  std::uint8_t* codes = nullptr;  ///< [blocks]
  float* nested = nullptr;        ///< [nf4_scale_blocks], the scales of the scales
  float* mean = nullptr;          ///< device scalar
};
void nf4_quantize_scales(Stream& stream, const Nf4QuantizeScalesArgs& args);

/// The stored scales of a tensor: either `plain`, or the other three.
struct Nf4Scales {
  const float* plain = nullptr;         ///< [blocks]
  const std::uint8_t* codes = nullptr;  ///< [blocks]
  const float* nested = nullptr;        ///< [nf4_scale_blocks]
  const float* mean = nullptr;          ///< device scalar
};

/// Tensors of one shape at equal distances, which one call decodes. Each has its codes and scales at the same
/// distance in bytes from those of the tensor before, a multiple of 16.
struct Nf4Series {
  std::int64_t tensors = 1;
  std::int64_t bytes = 0;       ///< of codes and scales
  std::int64_t elements = 0;    ///< of the output
  std::int64_t transposed = 0;  ///< elements of the transposed output
  std::int64_t scale = 0;       ///< floats between the FP8 scales
};

/// Decodes: value times scale in fp32, rounded once to `dtype`. The decoded part of the tensor begins at a
/// block. `codes` and `scales` belong to the whole tensor.
struct Nf4DecodeArgs {
  const std::uint8_t* codes = nullptr;
  Nf4Scales scales;
  std::int64_t begin = 0;  ///< a multiple of 64
  std::int64_t count = 0;
  void* to = nullptr;        ///< [count] in `dtype`, starting with element `begin`
  DType dtype = DType::f32;  ///< f32 or bf16
  Nf4Series series = {};
};
void nf4_decode(Stream& stream, const Nf4DecodeArgs& args);

/// Converts the codes of a whole matrix to FP8 operands of GEMMs. Decodes to `through` like nf4_decode,
/// multiplies by *scale and casts (saturating), in one pass and without amax. Either layout may be null.
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
  std::int64_t transposed_ld = 0;      ///< row pitch in elements: at least `rows`
  Nf4Series series = {};
};
void nf4_to_fp8(Stream& stream, const Nf4ToFp8Args& args);

}  // namespace octet::ops
