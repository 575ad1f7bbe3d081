// Gradients of a gated delta rule within chunks. A block has a chunk and a key head. It adds up the value
// heads of the key head one after another, so sums have a fixed order.
#include "cuda/delta/backward.cuh"
#include "cuda/delta/head_sums.cuh"

namespace octet::ops::cuda {
namespace {

/// Tiles of chunks_backward_kernel(). A stage has VS columns of states and values of a head. If there is
/// room, there are two stages, one of which is being copied. Four warps share the rows of a tile, and PARTS
/// share its columns.
template <typename T, int KD>
struct BackwardCut {
  static constexpr bool tensor_cores = sizeof(T) == 2;
  static constexpr int VS = tensor_cores ? 64 : 16, PARTS = tensor_cores ? 4 : 2;
  static constexpr int threads = PARTS * 4 * kWarp;
  static constexpr bool ahead = tensor_cores && KD < 256;
  /// Gradients of decays through states come from more GEMMs, not from differences of sums of heads. So they
  /// stay exact next to larger gradients.
  static constexpr bool exact = !tensor_cores;
  static constexpr int key_pitch = tile_pitch<T>(KD), square_pitch = tile_pitch<T>(kChunk);
  static constexpr int pitch = tile_pitch<T>(VS);
  static constexpr int keys = kChunk * key_pitch, state = KD * pitch, square = kChunk * square_pitch;
  static constexpr int values = kChunk * pitch;
  static constexpr int stage = 2 * state + 3 * values;
  /// Squares of gradients are stored in the stage if there is no room after it.
  static constexpr bool apart = KD < 256;
  static_assert(apart || (!ahead && 2 * square <= stage));
  static constexpr int elements =
      2 * keys + square + (ahead ? 2 : 1) * stage + 2 * values + (apart ? 2 * square : 0);
  static constexpr int token_bytes = 2 * kChunk * static_cast<int>(sizeof(DeltaToken));
  static constexpr int bytes = token_bytes + elements * static_cast<int>(sizeof(T));
  static_assert(bytes + static_cast<int>(sizeof(HeadSums<PARTS>)) <= 227 * 1024);
  static constexpr int value_tiles = VS / (8 * PARTS), key_tiles = KD / (8 * PARTS);
  static constexpr int square_tiles = kChunk / (8 * PARTS);
};

/// Writes the gradient of queries or keys before their norm: norm (d - factor norm x dots). `dots`: sums of
/// d · norm x by rows.
template <int NT, int PARTS, typename T>
__device__ inline void write_normed(float (&d)[NT][4], const RowSums<PARTS>& dots, const T* tile, int pitch,
                                    int row0, int col0, const DeltaToken* token, bool queries, float factor,
                                    T* to, std::int64_t ld, int rows, int cols, bool vector) {
  each_pair<NT>(d, col0, [&](int half, int col, float x, float y) {
    const int row = lane_row(row0, half);
    if (row >= rows || col >= cols) return;
    const float norm = queries ? token[row].query_norm : token[row].key_norm;
    const float along = factor * norm * sum_of_parts<PARTS>(dots, row);
    const float2 of = load_pair(tile + row * pitch + col);
    T* const at = to + row * ld + col;
    const float u = norm * (x - along * of.x), v = norm * (y - along * of.y);
    if (vector) return store_pair(at, u, v);
    at[0] = narrow<T>(u);
    at[1] = narrow<T>(v);
  });
}

/// Block (chunk number or the tokens after all documents, key head). With S and dS, the state before a chunk
/// and the gradient of the state after it, and Z of states_backward.cu:
///   dV = beta Z,  dX = -exp(c) dV,  D = exp(c_n - c)
///   dP = dO Uᵀ,  dA = -Z Uᵀ,  both without the upper triangle
///   dq = exp(c) dO Sᵀ + (dP exp) k,  dk = dX Sᵀ + (D U) dSᵀ + (dP exp)ᵀ q + (dG + dGᵀ) k,  dG = beta dA exp
/// Gradients of decays are sums of a gradient times its value, by rows or by columns.
template <typename T, int KD>
__global__ void __launch_bounds__(BackwardCut<T, KD>::threads)
    chunks_backward_kernel(DeltaRuleBackwardArgs a, DeltaWork<T> work, DeltaVector vector,
                           std::int64_t numbers) {
  using Cut = BackwardCut<T, KD>;
  constexpr int VS = Cut::VS, kThreads = Cut::threads;
  constexpr int kTiles = Cut::value_tiles, kKeyTiles = Cut::key_tiles, kSquareTiles = Cut::square_tiles;
  __shared__ HeadSums<Cut::PARTS> sums;
  const DeltaHeads& heads = a.heads;
  const std::int64_t key_head = blockIdx.x % heads.key_heads, number = blockIdx.x / heads.key_heads;
  const std::int64_t group = heads.value_heads / heads.key_heads, first_head = key_head * group;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  if (number == numbers) {
    const std::int64_t end = end_of_documents(a.documents), width = group * heads.value_dim;
    clear_rows<T>(a.d_qkv, end, key_head * heads.key_dim, heads.key_dim);
    clear_rows<T>(a.d_qkv, end, heads.keys() + key_head * heads.key_dim, heads.key_dim);
    clear_rows<T>(a.d_qkv, end, 2 * heads.keys() + key_head * width, width);
    const Matrix numbers_of_heads{.dtype = DType::f32, .rows = a.d_qkv.rows, .ld = heads.value_heads};
    for (float* const to : {a.d_log_decay, a.d_beta}) {
      Matrix m = numbers_of_heads;
      m.data = to;
      clear_rows<float>(m, end, first_head, group);
    }
    return;
  }
  const ChunkPlace chunk = find_chunk(a.documents.cu_seqlens, a.documents.count, number);
  if (chunk.tokens == 0) return;

  auto* const tokens = reinterpret_cast<DeltaToken*>(dynamic_shared());  // of two heads
  T* const keys = reinterpret_cast<T*>(dynamic_shared() + Cut::token_bytes);
  T* const queries = keys + Cut::keys;
  T* const inverse = queries + Cut::keys;
  T* const stages = inverse + Cut::square;
  T* const update = stages + (Cut::ahead ? 2 : 1) * Cut::stage;  // U
  T* const carried = update + Cut::values;                       // D U
  T* const d_scores = Cut::apart ? carried + Cut::values : stages;
  T* const d_gram = d_scores + Cut::square;

  const std::int64_t slices = (heads.value_dim + VS - 1) / VS, turns = group * slices;
  const auto stage_of = [&](std::int64_t turn) { return stages + (Cut::ahead ? turn % 2 * Cut::stage : 0); };
  const auto copy_stage = [&](std::int64_t turn) {
    const std::int64_t head = first_head + turn / slices, slice = turn % slices;
    const int cols = static_cast<int>(min(std::int64_t{VS}, heads.value_dim - slice * VS));
    const auto state = [&](const T* states, std::int64_t at, bool there, bool aligned) {
      const T* const from = states + ((at * heads.value_heads + head) * heads.key_dim) * heads.value_dim;
      return Part<T>{.data = there ? from + slice * VS : nullptr,
                     .ld = heads.value_dim,
                     .rows = there ? static_cast<int>(heads.key_dim) : 0,
                     .cols = cols,
                     .vector = aligned};
    };
    T* const to = stage_of(turn);
    copy_part<KD, VS, kThreads>(
        to, state(static_cast<const T*>(a.states), chunk.state - 1, !chunk.starts, vector.states));
    copy_part<KD, VS, kThreads>(to + Cut::state, state(work.d_states, chunk.state, !chunk.ends, true));
    const std::int64_t out = head * heads.value_dim + slice * VS, value = 2 * heads.keys() + out;
    T* const rows = to + 2 * Cut::state;
    copy_part<kChunk, VS, kThreads>(rows, columns_of<T>(a.qkv, chunk, value, cols, vector.qkv));
    copy_part<kChunk, VS, kThreads>(rows + Cut::values, columns_of<T>(a.d_out, chunk, out, cols, vector.out));
    copy_part<kChunk, VS, kThreads>(rows + 2 * Cut::values,
                                    columns_of<T>(a.d_qkv, chunk, value, cols, vector.d_qkv));
  };
  const auto copy_head = [&](std::int64_t h) {
    copy_tokens(tokens + h % 2 * kChunk, work.tokens, heads, chunk, first_head + h);
    copy_part<kChunk, kChunk, kThreads>(inverse, square_of(work.inverse, heads, chunk, first_head + h));
  };

  const int part = warp / 4, row0 = warp % 4 * 16;
  const int col0 = part * kTiles * 8, key0 = part * kKeyTiles * 8, other0 = part * kSquareTiles * 8;
  float d_queries[kKeyTiles][4] = {}, d_keys[kKeyTiles][4] = {};  // of all heads
  copy_part<kChunk, KD, kThreads>(keys, keys_of<T>(a.qkv, heads, chunk, key_head, vector.qkv));
  copy_part<kChunk, KD, kThreads>(queries, queries_of<T>(a.qkv, heads, chunk, key_head, vector.qkv));
  copy_head(0);
  if constexpr (Cut::ahead) copy_stage(0);
  end_copies();
  for (int i = thread; i < Cut::PARTS * kChunk; i += kThreads) {
    sums.before[0][i / kChunk][i % kChunk] = 0.0f;
    sums.before[1][i / kChunk][i % kChunk] = 0.0f;
  }

  for (std::int64_t h = 0; h < group; ++h) {
    const std::int64_t head = first_head + h;
    const DeltaToken* const token = tokens + h % 2 * kChunk;
    float of_d_out[kSquareTiles][4] = {}, of_z[kSquareTiles][4] = {};  // rows of dO or Z with rows of U
    float of_past[2] = {}, of_queries[2] = {}, of_next[2] = {}, of_beta[2] = {}, of_states = 0.0f;
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      const std::int64_t turn = h * slices + slice;
      if constexpr (Cut::ahead) {
        wait_for_copies<0>();
        __syncthreads();  // all of the turn before is done
        if (turn + 1 < turns) copy_stage(turn + 1);
        end_copies();
      } else {
        __syncthreads();
        copy_stage(turn);
        end_copies();
        wait_for_copies<0>();
        __syncthreads();
      }
      T* const state = stage_of(turn);
      T* const d_state = state + Cut::state;
      T* const rest = d_state + Cut::state;  // V, then beta (V - exp(c) K S)
      T* const d_out = rest + Cut::values;
      T* const z = d_out + Cut::values;
      const std::int64_t value_column = 2 * heads.keys() + head * heads.value_dim + slice * VS;
      const int cols = static_cast<int>(min(std::int64_t{VS}, heads.value_dim - slice * VS));

      if (slice == 0 && thread < kChunk) {
        const double c = token[thread].decay;
        sums.grown[thread] = decay_between(c, 0.0);
        sums.shrunk[thread] = decay_between(token[chunk.tokens - 1].decay, c);
      }
      float x[kTiles][4] = {};
      add_gemm<KD, Stored::rows, Stored::depth>(x, keys + row0 * Cut::key_pitch, Cut::key_pitch, state + col0,
                                                Cut::pitch);
      if constexpr (Cut::exact) {
        float o[kTiles][4] = {};
        add_gemm<KD, Stored::rows, Stored::depth>(o, queries + row0 * Cut::key_pitch, Cut::key_pitch,
                                                  state + col0, Cut::pitch);
        add_row_dots(of_queries, o, d_out, Cut::pitch, row0, col0);
      }
      each_pair<kTiles>(x, col0, [&](int half, int col, float u, float v) {
        const int row = lane_row(row0, half), at = row * Cut::pitch + col;
        const float2 value = load_pair(rest + at), d = load_pair(z + at);
        const float beta = token[row].beta, in = token[row].key_in;
        const float d_u = beta * d.x, d_v = beta * d.y;  // of values
        u *= in;
        v *= in;
        of_past[half] -= d_u * u + d_v * v;
        of_beta[half] += d.x * (value.x - u) + d.y * (value.y - v);
        store_pair(rest + at, beta * (value.x - u), beta * (value.y - v));
        if (row >= chunk.tokens || col >= cols) return;
        T* const to = row_of<T>(a.d_qkv, chunk.first + row) + value_column + col;
        if (vector.d_qkv) return store_pair(to, d_u, d_v);
        to[0] = narrow<T>(d_u);
        to[1] = narrow<T>(d_v);
      });
      for (int i = thread; i < KD * VS / 2; i += kThreads) {
        const int at = i / (VS / 2) * Cut::pitch + i % (VS / 2) * 2;
        const float2 s = load_pair(state + at), d = load_pair(d_state + at);
        of_states = fmaf(s.x, d.x, of_states);
        of_states = fmaf(s.y, d.y, of_states);
      }
      __syncthreads();

      float u[kTiles][4] = {};
      add_gemm<kChunk, Stored::rows, Stored::depth>(u, inverse + row0 * Cut::square_pitch, Cut::square_pitch,
                                                    rest + col0, Cut::pitch);
      if constexpr (Cut::exact) {
        float d[kTiles][4] = {};
        add_gemm<KD, Stored::rows, Stored::depth>(d, keys + row0 * Cut::key_pitch, Cut::key_pitch,
                                                  d_state + col0, Cut::pitch);
#pragma unroll
        for (int n = 0; n < kTiles; ++n) {
#pragma unroll
          for (int e = 0; e < 4; ++e) of_next[e / 2] = fmaf(u[n][e], d[n][e], of_next[e / 2]);
        }
      }
      each_pair<kTiles>(u, col0, [&](int half, int col, float p, float q) {
        const int row = lane_row(row0, half), at = row * Cut::pitch + col;
        const float out = sums.shrunk[row];
        store_pair(update + at, p, q);
        store_pair(carried + at, out * p, out * q);
      });
      __syncthreads();

      add_two_gemms<VS, Stored::rows, Stored::rows>(of_d_out, of_z, d_out + row0 * Cut::pitch,
                                                    z + row0 * Cut::pitch, Cut::pitch,
                                                    update + other0 * Cut::pitch, Cut::pitch);
      __syncthreads();

      for (int i = thread; i < kChunk * VS / 2; i += kThreads) {
        const int row = i / (VS / 2), at = row * Cut::pitch + i % (VS / 2) * 2;
        const float2 d = load_pair(d_out + at), of = load_pair(z + at);
        const float in = sums.grown[row], lowered = -in * token[row].beta;
        store_pair(d_out + at, in * d.x, in * d.y);
        store_pair(z + at, lowered * of.x, lowered * of.y);
      }
      __syncthreads();

      add_two_gemms<VS, Stored::rows, Stored::rows>(d_queries, d_keys, d_out + row0 * Cut::pitch,
                                                    z + row0 * Cut::pitch, Cut::pitch,
                                                    state + key0 * Cut::pitch, Cut::pitch);
      add_gemm<VS, Stored::rows, Stored::rows>(d_keys, carried + row0 * Cut::pitch, Cut::pitch,
                                               d_state + key0 * Cut::pitch, Cut::pitch);
    }
    if constexpr (!Cut::apart) __syncthreads();  // states are not needed any more

    // Sums of squares, with all columns of the values.
    float of_squares[2] = {};
    if constexpr (!Cut::exact) {
      add_row_dots(of_queries, d_queries, queries, Cut::key_pitch, row0, key0);
      add_row_dots(of_next, d_keys, keys, Cut::key_pitch, row0, key0);
    }
    float scores[kSquareTiles][4] = {}, gram[kSquareTiles][4] = {};
    add_two_gemms<KD, Stored::rows, Stored::rows>(scores, gram, queries + row0 * Cut::key_pitch,
                                                  keys + row0 * Cut::key_pitch, Cut::key_pitch,
                                                  keys + other0 * Cut::key_pitch, Cut::key_pitch);
    float of_columns[kSquareTiles][2] = {};
    const int lane = thread % kWarp;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = lane_row(row0, half);
      const DeltaToken of_row = token[row];
#pragma unroll
      for (int n = 0; n < kSquareTiles; ++n) {
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          const int col = other0 + n * 8 + lane % 4 * 2 + e, at = 2 * half + e;
          const float decay = col <= row ? decay_between(of_row.decay, token[col].decay) : 0.0f;
          const float below = col < row ? decay : 0.0f, norm = token[col].key_norm;
          const float d_score = decay * of_d_out[n][at], d_a = -below * of_z[n][at];
          const float of_key_pair = of_row.key_norm * norm * gram[n][at];
          const float d_of_keys = of_row.beta * d_a;
          const float both = fmaf(d_of_keys, of_key_pair,
                                  col < row ? d_score * of_row.query_norm * norm * scores[n][at] : 0.0f);
          of_beta[half] = fmaf(d_a, of_key_pair, of_beta[half]);
          of_squares[half] += both;
          of_columns[n][e] += both;
          of_d_out[n][at] = d_score;
          of_z[n][at] = d_of_keys;
        }
      }
    }
    const auto store_squares = [&](bool by_rows) {
      const auto store = [&](T* to, float(&d)[kSquareTiles][4], bool of_keys_only) {
        each_pair<kSquareTiles>(d, other0, [&](int half, int col, float p, float q) {
          const int row = lane_row(row0, half);
          float factor[2] = {token[col].key_norm, token[col + 1].key_norm};
          if (by_rows) factor[0] = factor[1] = of_keys_only ? token[row].key_norm : token[row].query_norm;
          store_pair(to + row * Cut::square_pitch + col, factor[0] * p, factor[1] * q);
        });
      };
      store(d_scores, of_d_out, false);
      store(d_gram, of_z, true);
    };
    store_squares(false);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const DeltaToken& of_row = token[lane_row(row0, half)];
      of_queries[half] *= Cut::exact ? of_row.query_in : of_row.query_norm;
      of_next[half] *= Cut::exact ? of_row.key_out : of_row.key_norm;
    }
    store_row_sums(sums.rows[kPast], of_past, row0, part);
    store_row_sums(sums.rows[kQueries], of_queries, row0, part);
    store_row_sums(sums.rows[kNext], of_next, row0, part);
    store_row_sums(sums.rows[kBeta], of_beta, row0, part);
    store_row_sums(sums.rows[kSquares], of_squares, row0, part);
#pragma unroll
    for (int n = 0; n < kSquareTiles; ++n) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float sum = of_columns[n][e];
#pragma unroll
        for (int offset = 4; offset < kWarp; offset *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, offset);
        if (lane < 4) sums.columns[warp % 4][other0 + n * 8 + lane * 2 + e] = sum;
      }
    }
    of_states = warp_reduce(of_states, Plus{});
    if (lane == 0) sums.states[warp] = of_states;
    __syncthreads();

    if (warp == 0) write_head<Cut::exact>(a, sums, token, chunk, head);
    add_two_gemms<kChunk, Stored::rows, Stored::depth>(d_queries, d_keys, d_scores + row0 * Cut::square_pitch,
                                                       d_gram + row0 * Cut::square_pitch, Cut::square_pitch,
                                                       keys + key0, Cut::key_pitch);
    __syncthreads();
    store_squares(true);
    if (h + 1 < group) copy_head(h + 1);
    end_copies();
    __syncthreads();
    add_gemm<kChunk, Stored::depth, Stored::depth>(d_keys, d_scores + row0, Cut::square_pitch, queries + key0,
                                                   Cut::key_pitch);
    add_gemm<kChunk, Stored::depth, Stored::depth>(d_keys, d_gram + row0, Cut::square_pitch, keys + key0,
                                                   Cut::key_pitch);
    // Totals of the heads up to this one.
    float up_to_queries[2] = {}, up_to_keys[2] = {};
    add_row_dots(up_to_queries, d_queries, queries, Cut::key_pitch, row0, key0);
    add_row_dots(up_to_keys, d_keys, keys, Cut::key_pitch, row0, key0);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const DeltaToken& of_row = token[lane_row(row0, half)];
      up_to_queries[half] *= of_row.query_norm;
      up_to_keys[half] *= of_row.key_norm;
    }
    store_row_sums(sums.before[0], up_to_queries, row0, part);
    store_row_sums(sums.before[1], up_to_keys, row0, part);
  }
  wait_for_copies<0>();
  __syncthreads();
  const DeltaToken* const token = tokens + (group - 1) % 2 * kChunk;
  T* const to = row_of<T>(a.d_qkv, chunk.first) + key_head * heads.key_dim;
  const int cols = static_cast<int>(heads.key_dim);
  write_normed(d_queries, sums.before[0], queries, Cut::key_pitch, row0, key0, token, true,
               static_cast<float>(heads.key_dim), to, a.d_qkv.ld, chunk.tokens, cols, vector.d_qkv);
  write_normed(d_keys, sums.before[1], keys, Cut::key_pitch, row0, key0, token, false, 1.0f,
               to + heads.keys(), a.d_qkv.ld, chunk.tokens, cols, vector.d_qkv);
}

}  // namespace

template <typename T>
void chunks_backward(cudaStream_t stream, const DeltaRuleBackwardArgs& a, const DeltaWork<T>& work,
                     const DeltaVector& vector) {
  const std::int64_t numbers = chunk_numbers(a.documents, a.qkv.rows);
  with_key_columns(a.heads.key_dim, [&](auto columns) {
    using Cut = BackwardCut<T, columns.value>;
    const auto kernel = chunks_backward_kernel<T, columns.value>;
    allow_delta_shared(kernel, Cut::bytes);
    const auto blocks = static_cast<unsigned>((numbers + 1) * a.heads.key_heads);
    kernel<<<blocks, Cut::threads, Cut::bytes, stream>>>(a, work, vector, numbers);
    octet::cuda::check_launch("delta_rule_backward");
  });
}
template void chunks_backward<float>(cudaStream_t, const DeltaRuleBackwardArgs&, const DeltaWork<float>&,
                                     const DeltaVector&);
template void chunks_backward<__nv_bfloat16>(cudaStream_t, const DeltaRuleBackwardArgs&,
                                             const DeltaWork<__nv_bfloat16>&, const DeltaVector&);

}  // namespace octet::ops::cuda
