// The gated delta rule over whole documents. A block passes some columns of a state through the chunks of a
// document, and computes their outputs.
#include "cuda/delta/chunks.cuh"
#include "kernels.h"

namespace octet::ops::cuda {
namespace {

/// Block (document or the tokens after all documents, value head, columns of values).
template <typename T, int KD, int VS>
__global__ void __launch_bounds__(ScanCut<T, KD, VS>::threads, ScanCut<T, KD, VS>::blocks)
    delta_rule_kernel(DeltaRuleArgs a, DeltaWork<T> work, DeltaVector vector) {
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
  if (document == a.documents.count) {
    return clear_rows<T>(a.out, end_of_documents(a.documents), out_column, cols);
  }

  const DocumentSpan span(a.documents.cu_seqlens, document);
  auto* const tokens = reinterpret_cast<DeltaToken*>(dynamic_shared());  // of two chunks
  T* const keys = reinterpret_cast<T*>(dynamic_shared() + Cut::token_bytes);
  T* const queries = keys + (Cut::ahead ? 2 : 1) * Cut::keys;
  T* const state_tile = queries + Cut::keys;
  T* const inverse = state_tile + Cut::state;
  T* const scores = inverse + Cut::square;
  T* const values = scores + Cut::square;
  T* const rest = values + Cut::values;     // beta (V - exp(c) K S)
  T* const update = rest + Cut::values;     // U
  T* const carried = update + Cut::values;  // rows of U with the factors of keys in the next state

  const auto keys_at = [&](std::int64_t c) { return keys + (Cut::ahead ? c % 2 * Cut::keys : 0); };
  const auto copy_keys = [&](std::int64_t c) {
    const ChunkPlace chunk = span.chunk(c);
    if (chunk.tokens == 0) return;
    copy_part<kChunk, KD, kThreads>(keys_at(c), keys_of<T>(a.qkv, heads, chunk, key_head, vector.qkv));
  };
  const auto copy_inputs = [&](std::int64_t c) {
    const ChunkPlace chunk = span.chunk(c);
    if (chunk.tokens == 0) return;
    copy_part<kChunk, KD, kThreads>(queries, queries_of<T>(a.qkv, heads, chunk, key_head, vector.qkv));
    copy_part<kChunk, VS, kThreads>(values, columns_of<T>(a.qkv, chunk, value_column, cols, vector.qkv));
    copy_tokens(tokens + c % 2 * kChunk, work.tokens, heads, chunk, head);
  };
  const auto copy_square = [&](T* to, const T* squares, std::int64_t c) {
    const ChunkPlace chunk = span.chunk(c);
    if (chunk.tokens == 0) return;
    copy_part<kChunk, kChunk, kThreads>(to, square_of(squares, heads, chunk, head));
  };

  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int row0 = warp % 4 * 16, col0 = warp / 4 * (VS / Cut::parts), key0 = warp % 4 * (KD / 4);
  float state[kStateTiles][kTiles][4] = {};
  for (int i = static_cast<int>(threadIdx.x); i < Cut::state; i += kThreads) {
    state_tile[i] = narrow<T>(0.0f);
  }
  if constexpr (Cut::ahead) copy_keys(0);
  copy_inputs(0);
  end_copies();
  copy_square(inverse, work.inverse, 0);
  end_copies();
  for (std::int64_t c = 0;; ++c) {
    const ChunkPlace chunk = span.chunk(c);
    if (chunk.tokens == 0) break;
    // At each wait, only the last group of copies may be in flight.
    wait_for_copies<1>();
    __syncthreads();  // all of the chunk before is done
    copy_keys(Cut::ahead ? c + 1 : c);
    copy_square(scores, work.scores, c);
    end_copies();
    if constexpr (!Cut::ahead) {
      wait_for_copies<0>();
      __syncthreads();
    }
    const T* const own_keys = keys_at(c);
    const DeltaToken* const token = tokens + c % 2 * kChunk;

    if (a.states != nullptr && c > 0) {
      const std::int64_t at = ((chunk.state - 1) * heads.value_heads + head) * heads.key_dim;
      write_part<KD, VS, kThreads>(static_cast<T*>(a.states) + at * heads.value_dim + slice * VS,
                                   heads.value_dim, static_cast<int>(heads.key_dim), cols, vector.states,
                                   state_tile);
    }
    float of_keys[kTiles][4] = {}, o[kTiles][4] = {};
    add_two_gemms<KD, Stored::rows, Stored::depth>(of_keys, o, own_keys + row0 * Cut::key_pitch,
                                                   queries + row0 * Cut::key_pitch, Cut::key_pitch,
                                                   state_tile + col0, Cut::pitch);
    each_pair<kTiles>(of_keys, col0, [&](int half, int col, float x, float y) {
      const int row = lane_row(row0, half);
      const float2 value = load_pair(values + row * Cut::pitch + col);
      const float beta = token[row].beta, in = token[row].key_in;
      store_pair(rest + row * Cut::pitch + col, beta * (value.x - in * x), beta * (value.y - in * y));
    });
    wait_for_copies<1>();
    __syncthreads();
    copy_inputs(c + 1);
    end_copies();

    float u[kTiles][4] = {};
    add_gemm<kChunk, Stored::rows, Stored::depth>(u, inverse + row0 * Cut::square_pitch, Cut::square_pitch,
                                                  rest + col0, Cut::pitch);
    each_pair<kTiles>(u, col0, [&](int half, int col, float x, float y) {
      const int row = lane_row(row0, half);
      const float out = token[row].key_out;
      store_pair(update + row * Cut::pitch + col, x, y);
      store_pair(carried + row * Cut::pitch + col, out * x, out * y);
    });
    wait_for_copies<1>();
    __syncthreads();
    copy_square(inverse, work.inverse, c + 1);
    end_copies();

    each_pair<kTiles>(o, col0, [&](int half, int, float& x, float& y) {
      const float in = token[lane_row(row0, half)].query_in;
      x *= in;
      y *= in;
    });
    add_gemm<kChunk, Stored::rows, Stored::depth>(o, scores + row0 * Cut::square_pitch, Cut::square_pitch,
                                                  update + col0, Cut::pitch);
    each_pair<kTiles>(o, col0, [&](int half, int col, float x, float y) {
      const int row = lane_row(row0, half);
      if (row >= chunk.tokens || col >= cols) return;
      T* const to = row_of<T>(a.out, chunk.first + row) + out_column + col;
      if (vector.out) return store_pair(to, x, y);
      to[0] = narrow<T>(x);
      to[1] = narrow<T>(y);
    });
    scale_tiles(state, decay_between(token[chunk.tokens - 1].decay, 0.0));
    add_tall_gemm<kChunk>(state, own_keys + key0, Cut::key_pitch, carried + col0, Cut::pitch);
    store_tiles(state_tile, Cut::pitch, key0, col0, state);
  }
  wait_for_copies<0>();
}

template <typename T>
void run(Stream& stream, const DeltaRuleArgs& a) {
  const cudaStream_t on = octet::cuda::native(stream);
  const DeltaWork<T> work = delta_work<T>(a.workspace, a.heads, a.qkv.rows);
  const DeltaVector vector{.qkv = packs(a.qkv),
                           .out = packs(a.out),
                           .states = reinterpret_cast<std::uintptr_t>(a.states) % 16 == 0};
  prepare_chunks<T>(on, a.qkv, a.log_decay, a.beta, a.heads, a.documents, work, vector);
  with_key_columns(a.heads.key_dim, [&](auto key_columns) {
    with_value_columns<T, key_columns.value>(a.heads, a.documents, [&](auto value_columns) {
      constexpr int kKeys = key_columns.value, kValues = value_columns.value;
      using Cut = ScanCut<T, kKeys, kValues>;
      const auto kernel = delta_rule_kernel<T, kKeys, kValues>;
      allow_delta_shared(kernel, Cut::bytes);
      const std::int64_t blocks =
          (a.documents.count + 1) * a.heads.value_heads * ceil_div(a.heads.value_dim, kValues);
      kernel<<<static_cast<unsigned>(blocks), Cut::threads, Cut::bytes, on>>>(a, work, vector);
      octet::cuda::check_launch("delta_rule");
    });
  });
}

}  // namespace

void delta_rule(Stream& stream, const DeltaRuleArgs& a) {
  if (a.qkv.rows == 0) return;
  with_type(a.qkv.dtype, [&](auto type) { run<decltype(type)>(stream, a); });
}

}  // namespace octet::ops::cuda
