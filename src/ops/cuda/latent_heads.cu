#include "octet/ops/latent_heads.h"

#include "cuda/row_quantize.cuh"
#include "cuda/tiles.cuh"

namespace octet::ops::cuda {

void join_latent_heads(Stream& stream, const JoinLatentHeadsArgs& args);
void split_latent_heads(Stream& stream, const SplitLatentHeadsArgs& args);
void cut_head_values(Stream& stream, const CutHeadValuesArgs& args);
void pad_head_values(Stream& stream, const PadHeadValuesArgs& args);

namespace {

constexpr int kThreads = 256;

/// A pack of elements (WHOLE), or one element. Both move without a conversion.
template <typename T, bool WHOLE>
struct Moved {
  static constexpr int kEach = WHOLE ? kPack : 1;
  __device__ static void copy(const T* from, T* to) {
    if constexpr (WHOLE) {
      RawPack<T> raw;
      raw.load(from);
#pragma unroll
      for (int w = 0; w < RawPack<T>::words; ++w) reinterpret_cast<uint4*>(to)[w] = raw.word[w];
    } else {
      *to = *from;
    }
  }
  __device__ static void clear(T* to) {
    if constexpr (WHOLE) {
#pragma unroll
      for (int w = 0; w < RawPack<T>::words; ++w) reinterpret_cast<uint4*>(to)[w] = make_uint4(0, 0, 0, 0);
    } else {
      *to = narrow<T>(0.0f);
    }
  }
};

/// Whether packs are parts of the runs that the ops move.
bool whole_runs(const LatentHeads& h) {
  return h.nope_dim % kPack == 0 && h.rope_dim % kPack == 0 && h.value_dim % kPack == 0;
}

unsigned blocks_for(std::int64_t rows, std::int64_t cols, bool whole) {
  return static_cast<unsigned>(ceil_div(rows * cols / (whole ? kPack : 1), kThreads));
}

/// Thread: a pack or an element of qkv.
template <typename T, bool WHOLE>
__global__ void __launch_bounds__(kThreads) join_heads_kernel(const JoinLatentHeadsArgs a) {
  using Move = Moved<T, WHOLE>;
  const LatentHeads& h = a.heads;
  const std::int64_t each_row = a.qkv.cols / Move::kEach, keys = h.keys();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.qkv.rows * each_row) return;
  const std::int64_t row = i / each_row, col = i % each_row * Move::kEach;
  const std::int64_t part = col / keys, head = col % keys / h.key_dim(), d = col % h.key_dim();
  T* const to = row_of<T>(a.qkv, row) + col;
  const bool rotates = d < h.rope_dim;
  if (part == 0) {
    const std::int64_t from = head * h.key_dim() + (rotates ? d + h.nope_dim : d - h.rope_dim);
    return Move::copy(row_of<T>(a.queries, row) + from, to);
  }
  const T* const expanded = row_of<T>(a.expanded, row) + head * (h.nope_dim + h.value_dim);
  if (part == 1) return Move::copy(rotates ? row_of<T>(a.rope_key, row) + d : expanded + d - h.rope_dim, to);
  d < h.value_dim ? Move::copy(expanded + h.nope_dim + d, to) : Move::clear(to);
}

/// Thread: a pack or an element of queries and then of expanded latents.
template <typename T, bool WHOLE>
__global__ void __launch_bounds__(kThreads) split_heads_kernel(const SplitLatentHeadsArgs a) {
  using Move = Moved<T, WHOLE>;
  const LatentHeads& h = a.heads;
  const std::int64_t keys = h.keys(), each_row = (keys + h.expanded()) / Move::kEach;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.d_qkv.rows * each_row) return;
  const std::int64_t row = i / each_row, col = i % each_row * Move::kEach;
  const T* const from = row_of<T>(a.d_qkv, row);
  if (col < keys) {
    const std::int64_t head = col / h.key_dim(), d = col % h.key_dim();
    const std::int64_t at = head * h.key_dim() + (d < h.nope_dim ? d + h.rope_dim : d - h.nope_dim);
    return Move::copy(from + at, row_of<T>(a.d_queries, row) + col);
  }
  const std::int64_t of_head = h.nope_dim + h.value_dim, at = col - keys;
  const std::int64_t head = at / of_head, d = at % of_head, first = keys + head * h.key_dim();
  Move::copy(from + first + (d < h.nope_dim ? d + h.rope_dim : keys + d - h.nope_dim),
             row_of<T>(a.d_expanded, row) + at);
}

/// Thread: an element of the shared part of the keys.
template <typename T>
__global__ void __launch_bounds__(kThreads) sum_rope_keys_kernel(const SplitLatentHeadsArgs a) {
  const LatentHeads& h = a.heads;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.d_qkv.rows * h.rope_dim) return;
  const std::int64_t row = i / h.rope_dim, d = i % h.rope_dim;
  const T* const keys = row_of<T>(a.d_qkv, row) + h.keys() + d;
  float sum = to_float(keys[0]);
  for (std::int64_t head = 1; head < h.heads; ++head) sum += to_float(keys[head * h.key_dim()]);
  row_of<T>(a.d_rope_key, row)[d] = narrow<T>(sum);
}

/// Thread: a pack or an element of the padded gradient.
template <typename T, bool WHOLE>
__global__ void __launch_bounds__(kThreads) pad_values_kernel(const PadHeadValuesArgs a) {
  using Move = Moved<T, WHOLE>;
  const LatentHeads& h = a.heads;
  const std::int64_t each_row = a.d_padded.cols / Move::kEach;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= a.d_padded.rows * each_row) return;
  const std::int64_t row = i / each_row, col = i % each_row * Move::kEach;
  const std::int64_t head = col / h.key_dim(), d = col % h.key_dim();
  T* const to = row_of<T>(a.d_padded, row) + col;
  d < h.value_dim ? Move::copy(row_of<T>(a.d_out, row) + head * h.value_dim + d, to) : Move::clear(to);
}

/// The column of a value in the output of attention.
__device__ inline std::int64_t padded_column(const LatentHeads& h, std::int64_t col) {
  return col / h.value_dim * h.key_dim() + col % h.value_dim;
}

template <typename T>
struct CutValues {
  static constexpr int outputs = 1;
  struct Raw {
    RawPack<T> x;
  };
  CutHeadValuesArgs a;
  __device__ std::int64_t column(int, std::int64_t col) const { return col; }
  __device__ Raw load(std::int64_t row, std::int64_t col) const {
    Raw raw;
    raw.x.load(row_of<T>(a.padded, row) + padded_column(a.heads, col));
    return raw;
  }
  __device__ void compute(std::int64_t row, std::int64_t col, const Raw& raw, float (&y)[1][kPack]) const {
    raw.x.get(y[0]);
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, y[0], kPack, true);
  }
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&y)[1][kPack]) const {
    const T* const from = row_of<T>(a.padded, row);
    if (at.whole) {
      load_pack(from + padded_column(a.heads, col), y[0], kPack, true);
    } else {
#pragma unroll
      for (int i = 0; i < kPack; ++i)
        y[0][i] = i < at.n ? to_float(from[padded_column(a.heads, col + i)]) : 0.0f;
    }
    if (a.out.data) store_pack(row_of<T>(a.out, row) + col, y[0], at.n, at.whole);
  }
};

/// Computes CutValues for a row with its own scale.
template <typename T>
struct CutRows {
  CutValues<T> values;
  __device__ void operator()(std::int64_t row, std::int64_t col, PackAt at, float (&y)[kPack]) const {
    float both[1][kPack];
    values(row, col, at, both);
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = both[0][i];
  }
};

}  // namespace

void join_latent_heads(Stream& stream, const JoinLatentHeadsArgs& a) {
  const bool whole =
      whole_runs(a.heads) && packs(a.queries) && packs(a.expanded) && packs(a.rope_key) && packs(a.qkv);
  with_type(a.qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = whole ? join_heads_kernel<T, true> : join_heads_kernel<T, false>;
    kernel<<<blocks_for(a.qkv.rows, a.qkv.cols, whole), kThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("join_latent_heads");
}

void split_latent_heads(Stream& stream, const SplitLatentHeadsArgs& a) {
  const bool whole = whole_runs(a.heads) && packs(a.d_qkv) && packs(a.d_queries) && packs(a.d_expanded);
  const std::int64_t cols = a.heads.keys() + a.heads.expanded();
  with_type(a.d_qkv.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = whole ? split_heads_kernel<T, true> : split_heads_kernel<T, false>;
    kernel<<<blocks_for(a.d_qkv.rows, cols, whole), kThreads, 0, octet::cuda::native(stream)>>>(a);
    octet::cuda::check_launch("split_latent_heads");
    sum_rope_keys_kernel<T>
        <<<blocks_for(a.d_qkv.rows, a.heads.rope_dim, false), kThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("split_latent_heads");
}

void cut_head_values(Stream& stream, const CutHeadValuesArgs& a) {
  const std::int64_t rows = a.padded.rows, cols = a.heads.values();
  const bool vector = whole_runs(a.heads) && packs(a.padded) && packs(a.out);
  const QuantizeInto& q = a.quantize;
  with_type(a.padded.dtype, [&](auto type) {
    const CutValues<decltype(type)> values{a};
    if (q.row_scale_inv == nullptr)
      return launch_tiles(stream, values, tile_out(q, rows, cols, 1), vector, "cut_head_values");
    launch_rows(stream, CutRows<decltype(type)>{values}, row_copy(q.row, q.row_scale_inv, rows, cols), vector,
                "cut_head_values");
  });
}

void pad_head_values(Stream& stream, const PadHeadValuesArgs& a) {
  const bool whole = whole_runs(a.heads) && packs(a.d_out) && packs(a.d_padded);
  with_type(a.d_out.dtype, [&](auto type) {
    using T = decltype(type);
    const auto kernel = whole ? pad_values_kernel<T, true> : pad_values_kernel<T, false>;
    kernel<<<blocks_for(a.d_padded.rows, a.d_padded.cols, whole), kThreads, 0, octet::cuda::native(stream)>>>(
        a);
  });
  octet::cuda::check_launch("pad_head_values");
}

}  // namespace octet::ops::cuda
