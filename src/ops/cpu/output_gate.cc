#include "octet/ops/output_gate.h"

#include <cstring>

#include "cpu/activations.h"
#include "cpu/row_quantizer.h"
#include "cpu/rows.h"
#include "kernels.h"

namespace octet::ops::cpu {
namespace {

template <typename T>
OCTET_SIMD void gate_row(const OutputGateArgs& a, RowQuantizer& quantizer, std::int64_t row) {
  const std::int64_t dim = a.heads.head_dim;
  for (std::int64_t head = 0; head < a.heads.q_heads; ++head) {
    const T* x = row_of<T>(a.attended, row) + head * dim;
    const T* gate = row_of<T>(a.projected, row) + (2 * head + 1) * dim;
    for (std::int64_t c = 0; c < dim; c += kChunk) {
      const std::int64_t n = chunk_length(c, dim);
      float y[kChunk];
      for (std::int64_t i = 0; i < n; ++i) {
        y[i] = simd::rounded_to<T>(simd::load(x[c + i]) * sigmoid(simd::load(gate[c + i])));
      }
      if (a.out.data) store(y, row_of<T>(a.out, row) + head * dim + c, n);
      quantizer.take(y, row, head * dim + c, n);
    }
  }
  quantizer.finish_row();
}

template <typename T>
OCTET_SIMD void gate_backward_head(const T* x, const T* gate, const T* d_out, T* d_x, T* d_gate,
                                   std::int64_t dim) {
  for (std::int64_t c = 0; c < dim; c += kChunk) {
    const std::int64_t n = chunk_length(c, dim);
    // Writes to buffers first: d_attended may be d_out.
    float d[kChunk], dg[kChunk];
    for (std::int64_t i = 0; i < n; ++i) {
      const float s = sigmoid(simd::load(gate[c + i])), dy = simd::load(d_out[c + i]);
      d[i] = dy * s;
      dg[i] = d[i] * simd::load(x[c + i]) * (1.0f - s);
    }
    store(d, d_x + c, n);
    store(dg, d_gate + c, n);
  }
}

template <typename T>
void copy_values(const T* from, T* to, std::int64_t count) {
  std::memcpy(to, from, static_cast<std::size_t>(count) * sizeof(T));
}

}  // namespace

void take_output_gates(const TakeOutputGatesArgs& a) {
  const std::int64_t dim = a.heads.head_dim, queries = a.heads.q_heads * dim;
  with_type(a.projected.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.qkv.rows, a.qkv.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* from = row_of<T>(a.projected, r);
        T* to = row_of<T>(a.qkv, r);
        for (std::int64_t at = 0; at < queries; at += dim) copy_values(from + 2 * at, to + at, dim);
        copy_values(from + 2 * queries, to + queries, a.qkv.cols - queries);
      }
    });
  });
}

void put_output_gates(const PutOutputGatesArgs& a) {
  const std::int64_t dim = a.heads.head_dim, queries = a.heads.q_heads * dim;
  with_type(a.d_qkv.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.d_qkv.rows, a.d_qkv.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        const T* from = row_of<T>(a.d_qkv, r);
        T* to = row_of<T>(a.d_projected, r);
        for (std::int64_t at = 0; at < queries; at += dim) copy_values(from + at, to + 2 * at, dim);
        copy_values(from + queries, to + 2 * queries, a.d_qkv.cols - queries);
      }
    });
  });
}

void output_gate(const OutputGateArgs& a) {
  with_type(a.attended.dtype, [&](auto type) {
    simd::parallel_rows(a.attended.rows, 4 * a.attended.cols, [&](std::int64_t begin, std::int64_t end) {
      RowQuantizer quantizer(a.quantize, a.attended.rows, a.attended.cols);
      for (std::int64_t r = begin; r < end; ++r) gate_row<decltype(type)>(a, quantizer, r);
    });
  });
}

void output_gate_backward(const OutputGateBackwardArgs& a) {
  const std::int64_t dim = a.heads.head_dim;
  with_type(a.attended.dtype, [&](auto type) {
    using T = decltype(type);
    simd::parallel_rows(a.attended.rows, 8 * a.attended.cols, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t r = begin; r < end; ++r) {
        for (std::int64_t head = 0; head < a.heads.q_heads; ++head) {
          const std::int64_t at = head * dim, gate = (2 * head + 1) * dim;
          gate_backward_head(row_of<T>(a.attended, r) + at, row_of<T>(a.projected, r) + gate,
                             row_of<T>(a.d_out, r) + at, row_of<T>(a.d_attended, r) + at,
                             row_of<T>(a.d_projected, r) + gate, dim);
        }
      }
    });
  });
}

}  // namespace octet::ops::cpu
