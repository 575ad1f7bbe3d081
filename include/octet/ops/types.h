// The ops room contains every kernel, fused to the extent that makes a GPU fast. An op has the same name in
// four places: its contract in include/octet/ops/<op>.h, checks and dispatch in src/ops/<op>.cc, its CPU side
// in src/ops/cpu/<op>.cc, and its CUDA side in src/ops/cuda/<op>.cu. Each op has one test.
//
// Rules of all ops:
// - An op enqueues its work on the given stream and returns.
// - Sizes are host numbers. Data, and scalars that change from step to step, are in device memory.
// - Zero rows are allowed and do nothing; sums are unchanged.
// - Matrices are row-major. "T" is the compute dtype, f32 or bf16.
// - Sums run in fp32 or better, in an order that depends only on shapes. Equal inputs give equal bits.
// - Outputs must not overlap inputs, unless the contract of the op allows it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/base/dtype.h"
#include "octet/device/device.h"

namespace octet::ops {

/// A row-major matrix in device memory: element (r, c) at data[r * ld + c].
struct Matrix {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;
};

/// A read-only Matrix.
struct ConstMatrix {
  const void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;
  ConstMatrix() = default;
  ConstMatrix(const void* d, DType t, std::int64_t r, std::int64_t c, std::int64_t l)
      : data(d), dtype(t), rows(r), cols(c), ld(l) {}
  ConstMatrix(const Matrix& m) : data(m.data), dtype(m.dtype), rows(m.rows), cols(m.cols), ld(m.ld) {}
};

/// Statistics of casts of a tensor to FP8, in device memory. Zero bytes are the empty state. Any number of
/// casts add to it, one after the other.
struct Fp8Seen {
  float amax;            ///< largest magnitude of the values; NaN if any value is NaN
  float scale;           ///< smallest scale of the casts; 0: none. Casts with block scales do not change it
  std::uint64_t values;  ///< number of cast values
  std::uint64_t saturated;  ///< number of values that rounding would take beyond the largest of the format
  std::uint64_t lost;       ///< number of non-zero values that became zero in FP8
};
/// Magnitudes up to this value become zero in a format. It is half of the smallest magnitude, a tie that
/// rounds to zero.
constexpr float fp8_lost(DType format) {
  return format == DType::e4m3 ? 0x1p-10f : 0x1p-17f;
}
/// Magnitudes above this value saturate. Smaller ones round to values of the format. The limit is the
/// midpoint between the largest value and the next value of an unbounded format. A tie rounds down in E4M3
/// and up in E5M2.
constexpr float fp8_fits(DType format) {
  return format == DType::e4m3 ? 464.0f : 0x1.dffffep15f;
}

/// Tells a producer where and how to write an FP8 copy of its output. With `row` (and `transposed`, if the
/// GEMMs of the device need it) the producer writes saturate(y * *scale) in `format`. With `amax` it raises
/// *amax to the maximum of abs(y) over the rows (NaN propagates). Any pointer may be null.
struct QuantizeInto {
  DType format = DType::e4m3;
  std::uint8_t* row = nullptr;         ///< [rows, cols]
  std::uint8_t* transposed = nullptr;  ///< [cols, rows]
  const float* scale = nullptr;        ///< device scalar, factor before the cast
  float* amax = nullptr;               ///< device scalar
  Fp8Seen* seen = nullptr;             ///< device: statistics of the cast are added; only with a copy
  /// [rows], device: used for Scaling::whole_rows in place of *scale. The producer computes the scales,
  /// writes them here, and writes E4M3 to `row`. All other outputs must be null.
  float* row_scale_inv = nullptr;
  /// Whether anything is written.
  bool wanted() const { return row != nullptr || transposed != nullptr || amax != nullptr; }
};

/// Elements that share a scale in an FP8 matrix:
/// - tensor: all elements
/// - rows: each run of 128 elements of a row (activations and gradients; each of the two layouts has its own)
/// - squares: each square of 128 x 128 (weights)
/// - whole_rows: each whole row (tokens of activations, outputs of weights; row layout only)
///
/// The block forms come from DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2).
enum class Scaling { tensor, rows, squares, whole_rows };
inline constexpr std::int64_t kScaleBlock = 128;

/// Layout of the scales of a [rows, cols] matrix, which is also the layout of cuBLASLt. The scale of element
/// (r, c) is stored at:
/// - rows: [c / 128][r] of [blocks of columns, rows]
/// - squares: [r / 128][c / 128] of [blocks of rows, blocks of columns rounded up to a multiple of 4]
/// - whole_rows: [r]
///
/// A transposed layout has the same form with rows and columns exchanged.
constexpr std::int64_t scale_blocks(std::int64_t count) {
  return (count + kScaleBlock - 1) / kScaleBlock;
}
constexpr std::int64_t square_pitch(std::int64_t cols) {
  return (scale_blocks(cols) + 3) / 4 * 4;
}
constexpr std::int64_t scale_index(Scaling scaling, std::int64_t rows, std::int64_t cols, std::int64_t r,
                                   std::int64_t c) {
  if (scaling == Scaling::rows) return c / kScaleBlock * rows + r;
  if (scaling == Scaling::whole_rows) return r;
  return scaling == Scaling::squares ? r / kScaleBlock * square_pitch(cols) + c / kScaleBlock : 0;
}
/// Returns the number of floats of these scales.
constexpr std::int64_t scale_count(Scaling scaling, std::int64_t rows, std::int64_t cols) {
  if (scaling == Scaling::rows) return scale_blocks(cols) * rows;
  if (scaling == Scaling::whole_rows) return rows;
  return scaling == Scaling::squares ? scale_blocks(rows) * square_pitch(cols) : 1;
}

/// A matrix operand of a GEMM: [rows, cols], row-major and dense, in f32, bf16 or FP8. FP8 values are
/// multiplied by their scale_inv (device; null: 1). `transposed` holds the matrix as [cols, rows] if GEMMs
/// need it (FP8 on Hopper: always; scaled by rows: always), else null. It has the same values as `data`,
/// except when scaled by rows. Then it has its own values and scales.
struct Operand {
  const void* data = nullptr;
  const void* transposed = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const float* scale_inv = nullptr;             ///< one value, or scale_count() values
  Scaling scaling = Scaling::tensor;            ///< scaling of `data` and `transposed`
  const float* transposed_scale_inv = nullptr;  ///< scales of `transposed`, unless `scaling` is tensor
};

/// Scratch memory of an op, allocated by the caller.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Documents of a flat micro-batch: document d owns tokens [cu_seqlens[d], cu_seqlens[d + 1]).
struct Documents {
  const std::int32_t* cu_seqlens = nullptr;       ///< device, [count + 1], starting at 0
  const std::int32_t* host_cu_seqlens = nullptr;  ///< a copy in host memory, or null
  std::int64_t count = 0;
  std::int64_t max_length = 0;
  std::int64_t tokens = 0;
};

/// Attention heads: query head h reads KV head h / (q_heads / kv_heads).
struct Heads {
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t qkv_width() const { return (q_heads + 2 * kv_heads) * head_dim; }
};

}  // namespace octet::ops
