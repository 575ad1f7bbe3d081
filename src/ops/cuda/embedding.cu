#include "cuda/column_sums.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

// Gathers rows: to[i] = scale * from[rows[i]], or zeros if rows[i] is not a row of `from`.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(ConstMatrix from, const std::int32_t* rows, float scale, Matrix to, bool vector) {
  let_next_begin();
  wait_for_previous();
  const std::int64_t row_packs = (to.cols + kPack - 1) / kPack;
  const std::int64_t count = to.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    const std::int64_t i = p / row_packs, col = p % row_packs * kPack;
    const std::int64_t row = rows[i];
    const PackAt at = pack_at(col, to.cols, vector);
    float x[kPack] = {};
    if (row >= 0 && row < from.rows) {
      load_pack(row_of<T>(from, row) + col, x, at.n, at.whole);
#pragma unroll
      for (int j = 0; j < kPack; ++j) x[j] *= scale;
    }
    store_pack(row_of<T>(to, i) + col, x, at.n, at.whole);
  }
}

/// Rows of words of a matrix.
struct WordRows {
  const std::uint8_t* data;
  std::int64_t pitch;  ///< bytes
};

// Copies rows of `words` words. A thread has several loads in flight.
template <typename Word>
__global__ void __launch_bounds__(kThreads)
    gather_words_kernel(WordRows from, const std::int32_t* rows, WordRows to, std::int64_t count,
                        std::int64_t words) {
  let_next_begin();
  wait_for_previous();
  constexpr int at_once = 4;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t begin = blockIdx.x * static_cast<std::int64_t>(kThreads) + threadIdx.x; begin < count;
       begin += at_once * stride) {
    Word word[at_once];
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const std::int64_t at = begin + i * stride;
      if (at < count)
        word[i] = reinterpret_cast<const Word*>(from.data + rows[at / words] * from.pitch)[at % words];
    }
#pragma unroll
    for (int i = 0; i < at_once; ++i) {
      const std::int64_t at = begin + i * stride;
      if (at < count)
        reinterpret_cast<Word*>(const_cast<std::uint8_t*>(to.data) + at / words * to.pitch)[at % words] =
            word[i];
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scatter_kernel(ConstMatrix from, const std::int32_t* rows, Matrix to, bool vector) {
  const std::int64_t row_packs = (from.cols + kPack - 1) / kPack;
  const std::int64_t count = from.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    const std::int64_t i = p / row_packs, col = p % row_packs * kPack;
    const std::int64_t row = rows[i];
    if (row < 0 || row >= to.rows) continue;
    const PackAt at = pack_at(col, from.cols, vector);
    float x[kPack];
    load_pack(row_of<T>(from, i) + col, x, at.n, at.whole);
    store_pack(row_of<T>(to, row) + col, x, at.n, at.whole);
  }
}

// --- the tokens of an id, as a chain in token order ----------------------------------------------------

constexpr int kNone = 0x7FFFFFFF;

// head[id] = the first token of the id. Only ids that occur are written, so the work does not depend on the
// vocabulary.
__global__ void clear_heads_kernel(const std::int32_t* ids, std::int64_t tokens, std::int64_t vocabulary,
                                   std::int32_t* head) {
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (t < tokens && ids[t] >= 0 && ids[t] < vocabulary) head[ids[t]] = kNone;
}
__global__ void find_heads_kernel(const std::int32_t* ids, std::int64_t tokens, std::int64_t vocabulary,
                                  std::int32_t* head) {
  const std::int64_t t = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x;
  if (t < tokens && ids[t] >= 0 && ids[t] < vocabulary)
    atomicMin(head + ids[t], static_cast<std::int32_t>(t));
}
constexpr int kLinkThreads = 128;
constexpr int kLinkTile = 8 * kLinkThreads;

/// Returns the first index after `after` with `id` in the tile, else `none`. Searches from the end of the
/// tile, so that no step waits for the previous step.
template <bool bounded>
__device__ inline int find_id(const std::int32_t (&tile)[kLinkTile], std::int32_t id, int after, int none) {
  int found = none;
#pragma unroll 4
  for (int j = kLinkTile - 4; j >= 0; j -= 4) {
    const int4 four = *reinterpret_cast<const int4*>(tile + j);
    if (four.w == id && (!bounded || j + 3 > after)) found = j + 3;
    if (four.z == id && (!bounded || j + 2 > after)) found = j + 2;
    if (four.y == id && (!bounded || j + 1 > after)) found = j + 1;
    if (four.x == id && (!bounded || j > after)) found = j;
  }
  return found;
}

// next[t] = the next token with the same id. Each block searches forward from its tokens, tile by tile, until
// all have found their successors.
__global__ void __launch_bounds__(kLinkThreads)
    link_tokens_kernel(const std::int32_t* ids, std::int64_t tokens, std::int32_t* next) {
  __shared__ __align__(16) std::int32_t tile[kLinkTile];
  const int start = static_cast<int>(blockIdx.x) * kLinkThreads, end = static_cast<int>(tokens);
  const int t = start + static_cast<int>(threadIdx.x);
  const std::int32_t id = t < end ? ids[t] : -1;
  int found = t < end ? kNone : 0;
  for (std::int64_t begin = start; begin < end; begin += kLinkTile) {
    if (__syncthreads_and(found != kNone)) break;
    // Indices after the end have no id. Tokens without an id are in no chain.
    for (int i = static_cast<int>(threadIdx.x); i < kLinkTile; i += kLinkThreads) {
      tile[i] = begin + i < end ? ids[begin + i] : -1;
    }
    __syncthreads();
    if (found != kNone) continue;
    const int place =
        begin == start ? find_id<true>(tile, id, t - start, kNone) : find_id<false>(tile, id, 0, kNone);
    if (place != kNone) found = static_cast<int>(begin) + place;
  }
  if (t < end) next[t] = found;
}

// A block adds the gradients of all tokens of one id, in token order. The blocks of later tokens of the id do
// nothing.
template <typename T, typename To>
__global__ void __launch_bounds__(kThreads)
    add_chains_kernel(EmbeddingBackwardArgs a, const std::int32_t* head, const std::int32_t* next,
                      bool vector) {
  const std::int64_t first = blockIdx.x;
  const std::int64_t id = a.ids[first];
  if (id < 0 || id >= a.d_table.rows || id == a.padding_id || head[id] != first) return;
  const std::int64_t hidden = a.d_table.cols;
  for (std::int64_t col = threadIdx.x * kPack; col < hidden;
       col += static_cast<std::int64_t>(blockDim.x) * kPack) {
    const PackAt at = pack_at(col, hidden, vector);
    float sum[kPack];
    load_pack(row_of<T>(a.d_out, first) + col, sum, at.n, at.whole);
    for (std::int32_t t = next[first]; t != kNone; t = next[t]) {
      float d[kPack];
      load_pack(row_of<T>(a.d_out, t) + col, d, at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) sum[i] += d[i];
    }
    To* to = row_of<To>(a.d_table, id) + col;
    float before[kPack];
    load_pack(static_cast<const To*>(to), before, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) before[i] += a.scale * sum[i];
    store_pack(to, before, at.n, at.whole);
  }
}

template <typename T>
struct BiasTerms {
  ConstMatrix dy;
  float* d_bias;
  bool vector;
  __host__ __device__ std::int64_t rows() const { return dy.rows; }
  __host__ __device__ std::int64_t cols() const { return dy.cols; }
  __device__ void load(std::int64_t row, std::int64_t col, const PackAt& at, float (&x)[kPack]) const {
    load_pack(row_of<T>(dy, row) + col, x, at.n, at.whole);
  }
  __device__ void add(std::int64_t col, float sum) const { d_bias[col] += sum; }
};

unsigned blocks_of(std::int64_t items) {
  return static_cast<unsigned>(ceil_div(items, kThreads));
}

void gather(Stream& stream, const ConstMatrix& from, const std::int32_t* rows, float scale, const Matrix& to,
            const char* op) {
  const std::int64_t count = to.rows * ceil_div(to.cols, kPack);
  if (count == 0) return;
  with_type(to.dtype, [&](auto type) {
    launch_early_if(few_rows(to.rows), gather_kernel<decltype(type)>, dim3(grid_of(stream, count, kThreads)),
                    kThreads, 0, octet::cuda::native(stream), op, from, rows, scale, to,
                    packs(from) && packs(to));
  });
}

}  // namespace

void embedding(Stream& stream, const EmbeddingArgs& a) {
  gather(stream, a.table, a.ids, a.scale, a.out, "embedding");
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& a) {
  const std::int64_t tokens = a.d_out.rows, vocabulary = a.d_table.rows;
  if (tokens == 0 || vocabulary == 0 || a.d_table.cols == 0) return;
  auto* head = static_cast<std::int32_t*>(a.workspace.data);
  std::int32_t* next = head + vocabulary;
  cudaStream_t queue = octet::cuda::native(stream);
  clear_heads_kernel<<<blocks_of(tokens), kThreads, 0, queue>>>(a.ids, tokens, vocabulary, head);
  find_heads_kernel<<<blocks_of(tokens), kThreads, 0, queue>>>(a.ids, tokens, vocabulary, head);
  link_tokens_kernel<<<static_cast<unsigned>(ceil_div(tokens, kLinkThreads)), kLinkThreads, 0, queue>>>(
      a.ids, tokens, next);
  with_type(a.d_out.dtype, [&](auto type) {
    with_type(a.d_table.dtype, [&](auto to) {
      add_chains_kernel<decltype(type), decltype(to)><<<static_cast<unsigned>(tokens), kThreads, 0, queue>>>(
          a, head, next, packs(a.d_out) && packs(a.d_table));
    });
  });
  octet::cuda::check_launch("embedding_backward");
}

void gather_rows(Stream& stream, const GatherRowsArgs& a) {
  const auto bytes_of = [](const ConstMatrix& m, std::int64_t elements) {
    return elements * static_cast<std::int64_t>(size_of(m.dtype));
  };
  const WordRows from{static_cast<const std::uint8_t*>(a.x.data), bytes_of(a.x, a.x.ld)},
      to{static_cast<const std::uint8_t*>(a.out.data), bytes_of(a.out, a.out.ld)};
  const std::int64_t row_bytes = bytes_of(a.out, a.out.cols);
  const auto copy = [&](auto kernel, std::int64_t word) {
    const std::int64_t words = row_bytes / word, count = a.out.rows * words;
    if (count == 0) return;
    launch_early_if(few_rows(a.out.rows), kernel, dim3(grid_of(stream, ceil_div(count, 4), kThreads)),
                    kThreads, 0, octet::cuda::native(stream), "gather_rows", from, a.rows, to, count, words);
  };
  if (packs(a.x) && packs(a.out) && row_bytes % 16 == 0) return copy(gather_words_kernel<uint4>, 16);
  copy(gather_words_kernel<std::uint8_t>, 1);
}

void scatter_rows(Stream& stream, const ScatterRowsArgs& a) {
  if (a.x.rows * a.x.cols == 0) return;
  const std::size_t size = size_of(a.x.dtype);
  octet::cuda::check(cudaMemset2DAsync(a.x.data, static_cast<std::size_t>(a.x.ld) * size, 0,
                                       static_cast<std::size_t>(a.x.cols) * size,
                                       static_cast<std::size_t>(a.x.rows), octet::cuda::native(stream)),
                     "scatter_rows");
  const std::int64_t count = a.in.rows * ceil_div(a.in.cols, kPack);
  if (count == 0) return;
  with_type(a.in.dtype, [&](auto type) {
    scatter_kernel<decltype(type)>
        <<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(
            a.in, a.rows, a.x, packs(a.in) && packs(a.x));
  });
  octet::cuda::check_launch("scatter_rows");
}

void bias_backward(Stream& stream, const BiasBackwardArgs& a) {
  if (a.dy.rows == 0 || a.dy.cols == 0) return;
  with_type(a.dy.dtype, [&](auto type) {
    sum_columns(octet::cuda::native(stream), BiasTerms<decltype(type)>{a.dy, a.d_bias, packs(a.dy)},
                "bias_backward");
  });
}

}  // namespace octet::ops::cuda
