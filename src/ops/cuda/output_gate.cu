#include "octet/ops/output_gate.h"

#include "cuda/activations.cuh"
#include "cuda/row_quantize.cuh"
#include "cuda/tiles.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// Returns the column of the gate of an output element in the projection.
__device__ inline std::int64_t gate_column(const Heads& heads, std::int64_t col) {
  return col / heads.head_dim * 2 * heads.head_dim + heads.head_dim + col % heads.head_dim;
}
/// Returns the column of an element of qkv in the projection.
__device__ inline std::int64_t projected_column(const Heads& heads, std::int64_t col) {
  const std::int64_t queries = heads.q_heads * heads.head_dim;
  return col < queries ? gate_column(heads, col) - heads.head_dim : col + queries;
}

/// Loads the gates of a pack. If `whole`, the pack is a part of one head.
template <typename T>
__device__ inline void load_gates(const ConstMatrix& projected, const Heads& heads, std::int64_t row,
                                  std::int64_t col, PackAt at, float (&gate)[kPack]) {
  const T* const from = row_of<T>(projected, row);
  if (at.whole) return load_pack(from + gate_column(heads, col), gate, kPack, true);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    gate[i] = i < at.n ? to_float(from[gate_column(heads, col + i)]) : 0.0f;
  }
}
__device__ inline float bounded_sigmoid(float x) {
  return sigmoid(Silu::bounded(x));
}

/// Thread: a pack of qkv (WHOLE) or an element, which moves to or from the projection.
template <typename T, bool WHOLE, bool TAKE>
__global__ void __launch_bounds__(kThreads) move_qkv_kernel(Matrix qkv, Matrix projected, Heads heads) {
  constexpr int kEach = WHOLE ? kPack : 1;
  const std::int64_t each_row = qkv.cols / kEach;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= qkv.rows * each_row) return;
  const std::int64_t row = i / each_row, col = i % each_row * kEach;
  T* const ours = row_of<T>(qkv, row) + col;
  T* const theirs = row_of<T>(projected, row) + projected_column(heads, col);
  const T* const from = TAKE ? theirs : ours;
  T* const to = TAKE ? ours : theirs;
  if constexpr (WHOLE) {
    RawPack<T> raw;
    raw.load(from);
#pragma unroll
    for (int w = 0; w < RawPack<T>::words; ++w) reinterpret_cast<uint4*>(to)[w] = raw.word[w];
  } else {
    *to = *from;
  }
}

template <bool TAKE>
void move_qkv(Stream& stream, const Matrix& qkv, const Matrix& projected, const Heads& heads,
              const char* op) {
  if (qkv.rows == 0) return;
  const bool whole = heads.head_dim % kPack == 0 && packs(qkv) && packs(projected);
  const auto blocks = static_cast<unsigned>(ceil_div(qkv.rows * qkv.cols / (whole ? kPack : 1), kThreads));
  with_type(qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = whole ? move_qkv_kernel<T, true, TAKE> : move_qkv_kernel<T, false, TAKE>;
    kernel<<<blocks, kThreads, 0, octet::cuda::native(stream)>>>(qkv, projected, heads);
  });
  octet::cuda::check_launch(op);
}

// Only one thread reads an element, and it does so before it overwrites it. So `out` may be `attended`.
template <typename T>
struct GateForward {
  static constexpr int outputs = 1;
  struct Raw {
    RawPack<T> x, gate;
  };
  OutputGateArgs a;
  __device__ std::int64_t column(int, std::int64_t col) const { return col; }
  __device__ Raw load(std::int64_t row, std::int64_t col) const {
    Raw raw;
    raw.x.load(row_of<T>(a.attended, row) + col);
    raw.gate.load(row_of<T>(a.projected, row) + gate_column(a.heads, col));
    return raw;
  }
  __device__ void compute(std::int64_t row, std::int64_t col, const Raw& raw, float (&y)[1][kPack]) const {
    float gate[kPack];
    raw.x.get(y[0]);
    raw.gate.get(gate);
    finish(row, col, {.n = kPack, .whole = true}, gate, y[0]);
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&y)[1][kPack]) const {
    float gate[kPack];
    load_pack(row_of<T>(a.attended, row) + col, y[0], at.n, at.whole);
    load_gates<T>(a.projected, a.heads, row, col, at, gate);
    finish(row, col, at, gate, y[0]);
  }
  __device__ void finish(std::int64_t row, std::int64_t col, PackAt at, const float (&gate)[kPack],
                         float (&y)[kPack]) const {
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] *= bounded_sigmoid(gate[i]);
    round_pack<T>(y);
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, y, at.n, at.whole);
  }
};

/// Computes GateForward for a row with its own scale.
template <typename T>
struct GateRows {
  GateForward<T> forward;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&y)[kPack]) const {
    float both[1][kPack];
    forward(row, col, at, both);
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = both[0][i];
  }
};

/// Values of a finished output.
template <typename T>
struct StoredRows {
  ConstMatrix x;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&y)[kPack]) const {
    load_pack(row_of<T>(x, row) + col, y, at.n, at.whole);
  }
};

/// d = d * sigmoid(gate), gate = the gradient of the gate.
__device__ inline void gate_gradients(const float (&x)[kPack], float (&d)[kPack], float (&gate)[kPack]) {
#pragma unroll
  for (int k = 0; k < kPack; ++k) {
    const float s = bounded_sigmoid(gate[k]);
    gate[k] = d[k] * x[k] * s * (1.0f - s);
    d[k] *= s;
  }
}

/// Rows of a thread of output_gate_backward_kernel(), with loads in flight together: in bf16 and at four
/// blocks, 96 KiB of a multiprocessor.
template <typename T>
constexpr int kRowsAtOnce = 4 / static_cast<int>(sizeof(T));

/// Block (kRowsAtOnce rows, kThreads packs). Thread: a pack of d_out in each of the rows. `across`: blocks of
/// a row.
template <typename T>
__global__ void __launch_bounds__(kThreads, 4)
    output_gate_backward_kernel(OutputGateBackwardArgs a, unsigned across, bool vector) {
  const std::int64_t col = (std::int64_t{blockIdx.x % across} * kThreads + threadIdx.x) * kPack;
  if (col >= a.d_out.cols) return;
  const std::int64_t row0 = std::int64_t{blockIdx.x / across} * kRowsAtOnce<T>, rows = a.d_out.rows;
  const PackAt at = pack_at(col, a.d_out.cols, vector);
  const std::int64_t gates = gate_column(a.heads, col);
  if (at.whole) {
    RawPack<T> raw_x[kRowsAtOnce<T>], raw_d[kRowsAtOnce<T>], raw_gate[kRowsAtOnce<T>];
#pragma unroll
    for (int r = 0; r < kRowsAtOnce<T>; ++r) {
      if (row0 + r >= rows) continue;
      raw_x[r].load(row_of<T>(a.attended, row0 + r) + col);
      raw_d[r].load(row_of<T>(a.d_out, row0 + r) + col);
      raw_gate[r].load(row_of<T>(a.projected, row0 + r) + gates);
    }
#pragma unroll
    for (int r = 0; r < kRowsAtOnce<T>; ++r) {
      if (row0 + r >= rows) continue;
      float x[kPack], d[kPack], gate[kPack];
      raw_x[r].get(x);
      raw_d[r].get(d);
      raw_gate[r].get(gate);
      gate_gradients(x, d, gate);
      store_pack(row_of<T>(a.d_attended, row0 + r) + col, d, kPack, true);
      store_pack(row_of<T>(a.d_projected, row0 + r) + gates, gate, kPack, true);
    }
    return;
  }
  for (std::int64_t row = row0; row < min(row0 + kRowsAtOnce<T>, rows); ++row) {
    float x[kPack], d[kPack], gate[kPack];
    load_pack(row_of<T>(a.attended, row) + col, x, at.n, false);
    load_pack(row_of<T>(a.d_out, row) + col, d, at.n, false);
    load_gates<T>(a.projected, a.heads, row, col, at, gate);
    gate_gradients(x, d, gate);
    store_pack(row_of<T>(a.d_attended, row) + col, d, at.n, false);
    T* const to = row_of<T>(a.d_projected, row);
#pragma unroll
    for (int k = 0; k < kPack; ++k) {
      if (k < at.n) to[gate_column(a.heads, col + k)] = narrow<T>(gate[k]);
    }
  }
}

}  // namespace

void take_output_gates(Stream& stream, const TakeOutputGatesArgs& a) {
  const Matrix projected{const_cast<void*>(a.projected.data), a.projected.dtype, a.projected.rows,
                         a.projected.cols, a.projected.ld};
  move_qkv<true>(stream, a.qkv, projected, a.heads, "take_output_gates");
}

void put_output_gates(Stream& stream, const PutOutputGatesArgs& a) {
  const Matrix d_qkv{const_cast<void*>(a.d_qkv.data), a.d_qkv.dtype, a.d_qkv.rows, a.d_qkv.cols, a.d_qkv.ld};
  move_qkv<false>(stream, d_qkv, a.d_projected, a.heads, "put_output_gates");
}

void output_gate(Stream& stream, const OutputGateArgs& a) {
  const std::int64_t rows = a.attended.rows, cols = a.attended.cols;
  const bool vector =
      a.heads.head_dim % kPack == 0 && packs(a.attended) && packs(a.projected) && packs(a.out);
  const QuantizeInto& q = a.quantize;
  with_type(a.attended.dtype, [&](auto type) {
    using T = decltype(type);
    const GateForward<T> forward{a};
    if (q.row_scale_inv == nullptr) {
      return launch_tiles(stream, forward, tile_out(q, rows, cols, 1), vector, "output_gate");
    }
    const RowCopy copy = row_copy(q.row, q.row_scale_inv, rows, cols);
    if (a.out.data == nullptr || cols <= std::int64_t{kRowThreads} * kKeptPacks * kPack) {
      return launch_rows(stream, GateRows<T>{forward}, copy, vector, "output_gate");
    }
    // Packs that do not stay in registers are computed twice, which `out` in place of `attended` forbids.
    launch_tiles(stream, forward, tile_out({}, rows, cols, 1), vector, "output_gate");
    launch_rows(stream, StoredRows<T>{a.out}, copy, vector, "output_gate");
  });
}

void output_gate_backward(Stream& stream, const OutputGateBackwardArgs& a) {
  if (a.d_out.rows == 0) return;
  const bool vector = a.heads.head_dim % kPack == 0 && packs(a.attended) && packs(a.projected) &&
                      packs(a.d_out) && packs(a.d_attended) && packs(a.d_projected);
  const std::int64_t across = ceil_div(ceil_div(a.d_out.cols, kPack), kThreads);
  with_type(a.d_out.dtype, [&](auto type) {
    using T = decltype(type);
    const std::int64_t blocks = ceil_div(a.d_out.rows, kRowsAtOnce<T>) * across;
    output_gate_backward_kernel<T>
        <<<static_cast<unsigned>(blocks), kThreads, 0, octet::cuda::native(stream)>>>(
            a, static_cast<unsigned>(across), vector);
  });
  octet::cuda::check_launch("output_gate_backward");
}

}  // namespace octet::ops::cuda
