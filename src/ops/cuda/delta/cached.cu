// The gated delta rule for decoding: each token is one step of the recurrence. A block has some columns of
// the state of a sequence in registers, for all tokens of the sequence in this call.
#include "cuda/delta/chunks.cuh"
#include "cuda/delta_columns.cuh"
#include "kernels.h"

namespace octet::ops::cuda {
namespace {

constexpr int kCachedThreads = 128;
/// Columns of a warp. Four lanes share the rows of a column.
constexpr int kWarpColumns = 8, kParts = kWarp / kWarpColumns;
constexpr int kBlockColumns = kCachedThreads / kWarp * kWarpColumns;

/// Adds the four parts of a column.
__device__ inline float sum_parts_of_column(float x) {
  x += __shfl_xor_sync(0xFFFFFFFFu, x, kWarpColumns);
  return x + __shfl_xor_sync(0xFFFFFFFFu, x, 2 * kWarpColumns);
}

/// Loads ROWS elements of a query or key, from element `first` on. Returns their sum of squares.
template <typename T, int ROWS>
__device__ inline float load_rows(const T* from, int first, int dim, bool vector, float (&x)[ROWS]) {
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < ROWS; i += kPack) {
    float pack[kPack] = {};
    if (first + i < dim) load_pack(from + first + i, pack, kPack, vector);
#pragma unroll
    for (int e = 0; e < kPack; ++e) {
      x[i + e] = pack[e];
      squares = fmaf(pack[e], pack[e], squares);
    }
  }
  return squares;
}

/// Block (token, value head, columns). Blocks of the first tokens of sequences work; copies of token 0 do
/// not.
template <typename T, int ROWS>
__global__ void __launch_bounds__(kCachedThreads)
    cached_delta_rule_kernel(CachedDeltaRuleArgs a, bool vector) {
  let_next_begin();
  wait_for_previous();
  const DeltaHeads& heads = a.heads;
  const CachedTokens tokens{a.slots, a.positions, a.qkv.rows};
  const std::int64_t first = blockIdx.x, head = blockIdx.y;
  if (tokens.copy(first) || tokens.same(first - 1, first)) return;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const std::int64_t col =
      static_cast<std::int64_t>(blockIdx.z) * kBlockColumns + warp * kWarpColumns + lane % kWarpColumns;
  const bool used = col < heads.value_dim;
  const int dim = static_cast<int>(heads.key_dim), row0 = lane / kWarpColumns * ROWS;
  float* const kept =
      a.states + (a.slots[first] * heads.value_heads + head) * heads.key_dim * heads.value_dim + col;
  float state[ROWS] = {};
  if (a.positions[first] != 0 && used) {
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      if (row0 + i < dim) state[i] = kept[(row0 + i) * heads.value_dim];
    }
  }
  const std::int64_t query = head / (heads.value_heads / heads.key_heads) * heads.key_dim;
  for (std::int64_t t = first; t == first || tokens.same(t, first); ++t) {
    const T* const row = row_of<T>(a.qkv, t);
    float q[ROWS], k[ROWS];
    const float of_query = load_rows<T, ROWS>(row + query, row0, dim, vector, q);
    const float of_key = load_rows<T, ROWS>(row + heads.keys() + query, row0, dim, vector, k);
    const float value = used ? to_float(row[2 * heads.keys() + head * heads.value_dim + col]) : 0.0f;
    const float decay = expf(a.log_decay[t * heads.value_heads + head]);
    const float beta = a.beta[t * heads.value_heads + head];
    const float key_norm = 1.0f / sqrtf(sum_parts_of_column(of_key) + kDeltaNormEps);
    const float query_norm =
        1.0f / sqrtf((sum_parts_of_column(of_query) + kDeltaNormEps) * static_cast<float>(dim));
    float along = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      state[i] *= decay;
      along = fmaf(state[i], k[i], along);
    }
    const float change = beta * (value - key_norm * sum_parts_of_column(along)) * key_norm;
    float out = 0.0f;
#pragma unroll
    for (int i = 0; i < ROWS; ++i) {
      state[i] = fmaf(k[i], change, state[i]);
      out = fmaf(state[i], q[i], out);
    }
    out = query_norm * sum_parts_of_column(out);
    if (used && row0 == 0) row_of<T>(a.out, t)[head * heads.value_dim + col] = narrow<T>(out);
  }
  if (!used) return;
#pragma unroll
  for (int i = 0; i < ROWS; ++i) {
    if (row0 + i < dim) kept[(row0 + i) * heads.value_dim] = state[i];
  }
}

}  // namespace

void cached_delta_rule(Stream& stream, const CachedDeltaRuleArgs& a) {
  if (a.qkv.rows == 0) return;
  const dim3 grid(static_cast<unsigned>(a.qkv.rows), static_cast<unsigned>(a.heads.value_heads),
                  static_cast<unsigned>(ceil_div(a.heads.value_dim, kBlockColumns)));
  with_type(a.qkv.dtype, [&](auto type) {
    with_key_columns(a.heads.key_dim, [&](auto columns) {
      using T = decltype(type);
      constexpr int kRows = columns.value / kParts;
      launch_early_if(few_rows(a.qkv.rows), cached_delta_rule_kernel<T, kRows>, grid, kCachedThreads, 0,
                      octet::cuda::native(stream), "cached_delta_rule", a, packs(a.qkv));
    });
    copy_first_row<decltype(type)>(stream, a.out, {a.slots, a.positions, a.qkv.rows}, "cached_delta_rule");
  });
}

}  // namespace octet::ops::cuda
