// Kernels that prepare operands for the library, and kernels that process its results.
#pragma once

#include <cuda_runtime_api.h>

#include "octet/ops/types.h"

namespace octet::ops::cuda {

/// Device scalars of a GEMM. cuBLASLt requires 16-byte alignment of each.
struct alignas(16) GemmScalars {
  alignas(16) float a_scale;
  alignas(16) float b_scale;
  alignas(16) float factors[2];  ///< a_scale * b_scale; 1 when accumulating, else 0
};
/// Copies scale_inv of both operands (null: 1).
void gather_scalars(cudaStream_t stream, GemmScalars* to, const float* a, const float* b, bool accumulate);

/// Converts FP8 [rows, cols] with row pitch `ld` to bf16 (exact), or copies the bytes, to [rows, to_ld].
/// Columns from `cols` on become zero. With `scales`, values are multiplied by block scales, which is also
/// exact. The scales belong to the dense matrix [scale_rows, ld]. The converted part starts at its row
/// first_row and column first_col.
struct Widening {
  const void* from = nullptr;
  DType from_type = DType::e4m3;
  std::int64_t rows = 0, cols = 0, ld = 0;
  void* to = nullptr;
  std::int64_t to_ld = 0;
  bool decode = false;
  const float* scales = nullptr;
  Scaling scaling = Scaling::tensor;
  std::int64_t scale_rows = 0, first_row = 0, first_col = 0;
};
void widen(cudaStream_t stream, const Widening& args);

/// Converts f32 to bf16.
void round_bias(cudaStream_t stream, const float* from, void* to, std::int64_t count);
/// D = (clear ? 0 : D) + bias (null: zeros).
void add_bias(cudaStream_t stream, const Matrix& d, const float* bias, bool clear);
/// D = D * scale of its row * scale of its column + bias + addend, in fp32.
struct GemmScaling {
  Matrix d;
  const float* row_scales = nullptr;  ///< [rows]
  const float* col_scales = nullptr;  ///< [cols]
  const float* bias = nullptr;        ///< [cols], or null
  const void* addend = nullptr;       ///< in the layout of D, does not overlap D; or null
};
void scale_gemm(cudaStream_t stream, const GemmScaling& args);

}  // namespace octet::ops::cuda
