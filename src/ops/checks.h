// Checks that ops share. They guard what callers promise, so they throw std::logic_error.
#pragma once

#include "octet/base/error.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// A dense or strided matrix of a compute dtype with somewhere to be.
inline bool is_matrix(const ConstMatrix& m) {
  return (m.dtype == DType::f32 || m.dtype == DType::bf16) && m.rows >= 0 && m.cols >= 0 && m.ld >= m.cols &&
         (m.data != nullptr || m.rows * m.cols == 0);
}

/// Same shape and dtype.
inline bool same_form(const ConstMatrix& a, const ConstMatrix& b) {
  return a.dtype == b.dtype && a.rows == b.rows && a.cols == b.cols;
}

/// A request for an FP8 copy with one scale that can be followed.
inline bool is_request(const QuantizeInto& q) {
  return is_fp8(q.format) && q.row_scale_inv == nullptr &&
         ((q.row == nullptr && q.transposed == nullptr) || q.scale != nullptr);
}

/// The same of one with a scale for each row, for ops that follow it.
inline bool is_row_request(const QuantizeInto& q) {
  return q.format == DType::e4m3 && q.row_scale_inv != nullptr && q.row != nullptr &&
         q.transposed == nullptr && q.scale == nullptr && q.amax == nullptr && q.seen == nullptr;
}

}  // namespace octet::ops
