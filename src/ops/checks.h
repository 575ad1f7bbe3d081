// Checks shared by ops. They check the callers' contracts, so they throw std::logic_error.
#pragma once

#include "octet/base/error.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// Returns whether m is a valid dense or strided matrix of a compute dtype, with data unless it is empty.
inline bool is_matrix(const ConstMatrix& m) {
  return (m.dtype == DType::f32 || m.dtype == DType::bf16) && m.rows >= 0 && m.cols >= 0 && m.ld >= m.cols &&
         (m.data != nullptr || m.rows * m.cols == 0);
}

/// Returns whether shape and dtype are equal.
inline bool same_form(const ConstMatrix& a, const ConstMatrix& b) {
  return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols;
}

/// Returns whether m is a [rows, cols] matrix of this dtype.
inline bool is_of(const ConstMatrix& m, DType dtype, std::int64_t rows, std::int64_t cols) {
  return is_matrix(m) && m.dtype == dtype && m.rows == rows && m.cols == cols;
}

/// Returns whether q is a valid request for an FP8 copy with one scale.
inline bool is_request(const QuantizeInto& q) {
  return is_fp8(q.format) && q.row_scale_inv == nullptr &&
         ((q.row == nullptr && q.transposed == nullptr) || q.scale != nullptr);
}

/// Returns whether q is a valid request for an FP8 copy with a scale per row.
inline bool is_row_request(const QuantizeInto& q) {
  return q.format == DType::e4m3 && q.row_scale_inv != nullptr && q.row != nullptr &&
         q.transposed == nullptr && q.scale == nullptr && q.amax == nullptr && q.seen == nullptr;
}

}  // namespace octet::ops
