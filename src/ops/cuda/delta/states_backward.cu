// Gradients of the states of a gated delta rule. A block passes some columns of the gradient of a state
// through the chunks of a document, from the last to the first.
#include "cuda/delta/backward.cuh"

namespace octet::ops::cuda {
namespace {

/// Block (document, value head, columns of values). With dS, the gradient of the state after a chunk:
///   dU = Pᵀ dO + exp(c_n - c) K dS,  Z = Tᵀ dU,
///   dS before = exp(c_n) dS + Qᵀ (exp(c) dO) - Kᵀ (exp(c) beta Z)
/// Z is stored in the columns of values of d_qkv.
template <typename T, int KD, int VS>
__global__ void __launch_bounds__(ScanCut<T, KD, VS>::threads, ScanCut<T, KD, VS>::blocks)
    states_backward_kernel(DeltaRuleBackwardArgs a, DeltaWork<T> work, DeltaVector vector) {
  using Cut = ScanCut<T, KD, VS>;
  constexpr int kTiles = Cut::value_tiles, kStateTiles = Cut::state_tiles, kThreads = Cut::threads;
  const DeltaHeads& heads = a.heads;
  const std::int64_t slices = (heads.value_dim + VS - 1) / VS;
  const std::int64_t slice = blockIdx.x % slices, head = blockIdx.x / slices % heads.value_heads;
  const std::int64_t document = blockIdx.x / slices / heads.value_heads;
  const std::int64_t key_head = head / (heads.value_heads / heads.key_heads);
  const int cols = static_cast<int>(min(std::int64_t{VS}, heads.value_dim - slice * VS));
  const std::int64_t out_column = head * heads.value_dim + slice * VS;
  const std::int64_t value_column = 2 * heads.keys() + out_column;

  auto* const tokens = reinterpret_cast<DeltaToken*>(dynamic_shared());  // of two chunks
  T* const keys = reinterpret_cast<T*>(dynamic_shared() + Cut::token_bytes);
  T* const queries = keys + (Cut::ahead ? 2 : 1) * Cut::keys;
  T* const state_tile = queries + Cut::keys;
  T* const inverse = state_tile + Cut::state;
  T* const scores = inverse + Cut::square;
  T* const d_out = scores + Cut::square;
  T* const lifted = d_out + Cut::values;      // rows of dO with the factors of queries in the state
  T* const d_update = lifted + Cut::values;   // dU
  T* const lowered = d_update + Cut::values;  // rows of Z with the factors of keys in the state

  const DocumentSpan span(a.documents.cu_seqlens, document);
  const std::int64_t chunks = span.chunks();
  // Step s has chunk chunks - 1 - s.
  const auto chunk_at = [&](std::int64_t s) { return span.chunk(chunks - 1 - s); };
  const auto keys_at = [&](std::int64_t s) { return keys + (Cut::ahead ? s % 2 * Cut::keys : 0); };
  const auto copy_keys = [&](std::int64_t s) {
    const ChunkPlace chunk = chunk_at(s);
    if (chunk.tokens == 0) return;
    copy_part<kChunk, KD, kThreads>(keys_at(s), keys_of<T>(a.qkv, heads, chunk, key_head, vector.qkv));
  };
  const auto copy_square = [&](T* to, const T* squares, std::int64_t s) {
    const ChunkPlace chunk = chunk_at(s);
    if (chunk.tokens == 0) return;
    copy_part<kChunk, kChunk, kThreads>(to, square_of(squares, heads, chunk, head));
  };
  const auto copy_gradients = [&](std::int64_t s) {
    const ChunkPlace chunk = chunk_at(s);
    if (chunk.tokens == 0) return;
    copy_part<kChunk, VS, kThreads>(d_out, columns_of<T>(a.d_out, chunk, out_column, cols, vector.out));
    copy_tokens(tokens + s % 2 * kChunk, work.tokens, heads, chunk, head);
    copy_square(scores, work.scores, s);
  };

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row0 = warp % 4 * 16, col0 = warp / 4 * (VS / Cut::parts), key0 = warp % 4 * (KD / 4);
  float state[kStateTiles][kTiles][4] = {};
  for (int i = static_cast<int>(threadIdx.x); i < Cut::state; i += kThreads) {
    state_tile[i] = narrow<T>(0.0f);
  }
  if constexpr (Cut::ahead) copy_keys(0);
  copy_gradients(0);
  end_copies();
  copy_square(inverse, work.inverse, 0);
  end_copies();
  for (std::int64_t s = 0; s < chunks; ++s) {
    const ChunkPlace chunk = chunk_at(s);
    // At each wait, only the last group of copies may be in flight.
    wait_for_copies<1>();
    __syncthreads();  // all of the step before is done
    copy_keys(Cut::ahead ? s + 1 : s);
    copy_part<kChunk, KD, kThreads>(queries, queries_of<T>(a.qkv, heads, chunk, key_head, vector.qkv));
    end_copies();
    if constexpr (!Cut::ahead) {
      wait_for_copies<0>();
      __syncthreads();
    }
    const T* const own_keys = keys_at(s);
    const DeltaToken* const token = tokens + s % 2 * kChunk;

    if (!chunk.ends) {
      const std::int64_t at = (chunk.state * heads.value_heads + head) * heads.key_dim;
      write_part<KD, VS, kThreads>(work.d_states + at * heads.value_dim + slice * VS, heads.value_dim,
                                   static_cast<int>(heads.key_dim), cols, true, state_tile);
    }
    float d_u[kTiles][4] = {};
    add_gemm<KD, Stored::rows, Stored::depth>(d_u, own_keys + row0 * Cut::key_pitch, Cut::key_pitch,
                                              state_tile + col0, Cut::pitch);
    each_pair<kTiles>(d_u, col0, [&](int half, int, float& x, float& y) {
      const float out = token[lane_row(row0, half)].key_out;
      x *= out;
      y *= out;
    });
    add_gemm<kChunk, Stored::depth, Stored::depth>(d_u, scores + row0, Cut::square_pitch, d_out + col0,
                                                   Cut::pitch);
    each_pair<kTiles>(d_u, col0, [&](int half, int col, float x, float y) {
      const int row = lane_row(row0, half), at = row * Cut::pitch + col;
      const float2 d = load_pair(d_out + at);
      const float in = token[row].query_in;
      store_pair(d_update + at, x, y);
      store_pair(lifted + at, in * d.x, in * d.y);
    });
    wait_for_copies<1>();
    __syncthreads();
    copy_gradients(s + 1);
    end_copies();

    float z[kTiles][4] = {};
    add_gemm<kChunk, Stored::depth, Stored::depth>(z, inverse + row0, Cut::square_pitch, d_update + col0,
                                                   Cut::pitch);
    each_pair<kTiles>(z, col0, [&](int half, int col, float x, float y) {
      const int row = lane_row(row0, half);
      const float factor = -token[row].key_in * token[row].beta;
      store_pair(lowered + row * Cut::pitch + col, factor * x, factor * y);
      if (row >= chunk.tokens || col >= cols) return;
      T* const to = row_of<T>(a.d_qkv, chunk.first + row) + value_column + col;
      if (vector.d_qkv) return store_pair(to, x, y);
      to[0] = narrow<T>(x);
      to[1] = narrow<T>(y);
    });
    wait_for_copies<1>();
    __syncthreads();
    copy_square(inverse, work.inverse, s + 1);
    end_copies();
    if (chunk.starts) break;  // no chunk reads the gradient of the first state

    scale_tiles(state, decay_between(token[chunk.tokens - 1].decay, 0.0));
    add_tall_gemm<kChunk>(state, queries + key0, Cut::key_pitch, lifted + col0, Cut::pitch);
    add_tall_gemm<kChunk>(state, own_keys + key0, Cut::key_pitch, lowered + col0, Cut::pitch);
    store_tiles(state_tile, Cut::pitch, key0, col0, state);
  }
  wait_for_copies<0>();
}

}  // namespace

template <typename T>
void states_backward(cudaStream_t stream, const DeltaRuleBackwardArgs& a, const DeltaWork<T>& work,
                     const DeltaVector& vector) {
  if (a.documents.count == 0) return;
  with_key_columns(a.heads.key_dim, [&](auto key_columns) {
    with_value_columns<T, key_columns.value>(a.heads, a.documents, [&](auto value_columns) {
      constexpr int kKeys = key_columns.value, kValues = value_columns.value;
      using Cut = ScanCut<T, kKeys, kValues>;
      const auto kernel = states_backward_kernel<T, kKeys, kValues>;
      allow_delta_shared(kernel, Cut::bytes);
      const std::int64_t blocks =
          a.documents.count * a.heads.value_heads * ceil_div(a.heads.value_dim, kValues);
      kernel<<<static_cast<unsigned>(blocks), Cut::threads, Cut::bytes, stream>>>(a, work, vector);
      octet::cuda::check_launch("delta_rule_backward");
    });
  });
}
template void states_backward<float>(cudaStream_t, const DeltaRuleBackwardArgs&, const DeltaWork<float>&,
                                     const DeltaVector&);
template void states_backward<__nv_bfloat16>(cudaStream_t, const DeltaRuleBackwardArgs&,
                                             const DeltaWork<__nv_bfloat16>&, const DeltaVector&);

}  // namespace octet::ops::cuda
