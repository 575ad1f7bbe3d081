// The ops room: every kernel, cut at the fused grain at which a GPU is fast. One op is one name in four
// places: its contract here, checks and dispatch in src/ops/<op>.cc, its CPU side in src/ops/cpu/<op>.cc, its
// CUDA side in src/ops/cuda/<op>.cu; and one test.
//
// Rules of all ops: they enqueue on the given stream and return; sizes are host numbers, data and scalars
// that change from step to step lie in device memory; a count of zero rows is allowed and does nothing (sums
// stay as they are); matrices are row-major; "T" is the compute dtype, f32 or bf16; sums run in fp32 or
// better and in an order that depends on shapes alone, so that equal inputs give equal bits. Unless an op
// says otherwise its outputs must not overlap its inputs.
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

/// The same, read only.
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

/// What casts of a tensor to FP8 have met, in device memory, where zero bytes mean: nothing yet. Any number
/// of casts add to it, one after the other.
struct Fp8Seen {
  float amax;               ///< largest magnitude of the values; NaN where one was
  float scale;              ///< the least that was used; 0: none. Casts with scales of blocks leave it alone
  std::uint64_t values;     ///< how many were cast
  std::uint64_t saturated;  ///< of these: rounding would have taken them beyond the largest of the format
  std::uint64_t lost;       ///< of these: not zero, and zero in FP8
};
/// Magnitudes up to this one become zero in a format: half of its smallest, a tie that goes to zero.
constexpr float fp8_lost(DType format) {
  return format == DType::e4m3 ? 0x1p-10f : 0x1p-17f;
}
/// Magnitudes above this one are saturated: up to it they are rounded to the largest of a format. Half way to
/// the next value there would be, a tie that goes down with E4M3 and up with E5M2.
constexpr float fp8_fits(DType format) {
  return format == DType::e4m3 ? 464.0f : 0x1.dffffep15f;
}

/// Where and how a producer leaves an FP8 copy of its output. With `row` (and `transposed`, where the
/// device's products need it) it writes saturate(y * *scale) in `format`; with `amax` it raises *amax to max
/// |y| over the rows (NaN propagates). Any pointer may be null.
struct QuantizeInto {
  DType format = DType::e4m3;
  std::uint8_t* row = nullptr;         ///< [rows, cols]
  std::uint8_t* transposed = nullptr;  ///< [cols, rows]
  const float* scale = nullptr;        ///< device scalar, multiplies before the cast
  float* amax = nullptr;               ///< device scalar
  Fp8Seen* seen = nullptr;  ///< device: what the cast into the copies meets is added; not without one
  /// [rows], device: Scaling::whole_rows in place of *scale. `row` gets E4M3 and this the scales, which the
  /// producer makes; nothing else is asked for.
  float* row_scale_inv = nullptr;
};

/// What shares a scale in an FP8 matrix: all of it; each run of 128 elements of a row (activations and
/// gradients, in each of the two layouts for itself); each square of 128 x 128 (weights); each whole row
/// (tokens of activations, outputs of weights; of the row layout alone). The block forms are those of
/// DeepSeek-V3 (DeepSeek-AI 2024, arXiv:2412.19437, section 3.3.2).
enum class Scaling { tensor, rows, squares, whole_rows };
inline constexpr std::int64_t kScaleBlock = 128;

/// Where the scales of a [rows, cols] matrix lie, as cuBLASLt reads them. rows: that of element (r, c) at
/// [c / 128][r] of [blocks of columns, rows]; squares: at [r / 128][c / 128] of [blocks of rows, blocks of
/// columns rounded up to a multiple of 4]; whole_rows: at [r]. A transposed layout has the same form with
/// rows and columns exchanged.
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
/// Floats that hold them.
constexpr std::int64_t scale_count(Scaling scaling, std::int64_t rows, std::int64_t cols) {
  if (scaling == Scaling::rows) return scale_blocks(cols) * rows;
  if (scaling == Scaling::whole_rows) return rows;
  return scaling == Scaling::squares ? scale_blocks(rows) * square_pitch(cols) : 1;
}

/// One matrix as a product reads it: [rows, cols], row-major and dense, in f32, bf16 or FP8. FP8 values count
/// times their scale_inv (device; null: 1). `transposed` holds the matrix as [cols, rows] where products need
/// it (FP8 on Hopper: always; scaled by rows: always), else null; it has the same values, but when scaled by
/// rows, where it has its own.
struct Operand {
  const void* data = nullptr;
  const void* transposed = nullptr;
  DType dtype = DType::f32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  const float* scale_inv = nullptr;             ///< one, or scale_count of them
  Scaling scaling = Scaling::tensor;            ///< of `data` and `transposed`
  const float* transposed_scale_inv = nullptr;  ///< of `transposed`, where it is not scaled as a tensor
};

/// Scratch memory of an op, reserved beforehand.
struct Workspace {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// Documents of a flat micro-batch: document d owns tokens [cu_seqlens[d], cu_seqlens[d + 1]).
struct Documents {
  const std::int32_t* cu_seqlens = nullptr;       ///< device, [count + 1], starting at 0
  const std::int32_t* host_cu_seqlens = nullptr;  ///< the same numbers in host memory, or null
  std::int64_t count = 0;
  std::int64_t max_length = 0;
  std::int64_t tokens = 0;
};

/// Heads of attention: query head h reads KV head h / (q_heads / kv_heads).
struct Heads {
  std::int64_t q_heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t qkv_width() const { return (q_heads + 2 * kv_heads) * head_dim; }
};

}  // namespace octet::ops
