// Attention for decoding. The key and value of each token are written to the cache, then each token attends.
// The time is bound by reads of the cache. So a block reads the keys of a KV head once for all query heads
// (cached.cuh). Heads with rows that are not aligned to 16 bytes use a separate kernel, which reads the keys
// once per query head.
#include "cuda/attention/cached.cuh"

#include <algorithm>
#include <bit>
#include <limits>

#include "cuda/attention/attention_kernels.h"
#include "cuda/attention/cached_bf16.cuh"
#include "cuda/attention/cached_decode.cuh"
#include "cuda/attention/cached_fp32.cuh"
#include "cuda/attention/cached_in_order.cuh"
#include "cuda/attention/shared_memory.cuh"
#include "cuda/scratch.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

constexpr int kWarps = kAttentionThreads / 32;
constexpr int kPerLane = static_cast<int>(kMostHeadDim) / 32;

template <typename T, bool FP8>
__global__ void __launch_bounds__(kAttentionThreads) append_kernel(const Cached args, std::int64_t first) {
  const std::int64_t token = first + blockIdx.x, width = args.stride();
  if (!args.inside(token)) return;
  const T* k = static_cast<const T*>(args.qkv) + token * args.qkv_ld + args.q_heads * args.head_dim;
  if constexpr (FP8) {
    // Each warp encodes one head of the keys, or of the values, at a time.
    const std::int64_t first_scale = args.row(args.slots[token], args.positions[token]) * args.kv_heads;
    for (int i = static_cast<int>(threadIdx.x) / 32; i < 2 * args.kv_heads; i += kWarps) {
      const bool keys = i < args.kv_heads;
      const std::int64_t row = first_scale + (keys ? i : i - args.kv_heads);
      encode_head(k + static_cast<std::int64_t>(i) * args.head_dim, args.head_dim,
                  static_cast<std::uint8_t*>(keys ? args.k_cache : args.v_cache) + row * args.head_dim,
                  (keys ? args.k_scale_inv : args.v_scale_inv) + row);
    }
  } else {
    const std::int64_t at = args.row(args.slots[token], args.positions[token]) * width;
    for (std::int64_t i = threadIdx.x; i < width; i += kAttentionThreads) {
      static_cast<T*>(args.k_cache)[at + i] = k[i];
      static_cast<T*>(args.v_cache)[at + i] = k[width + i];
    }
  }
}

/// Returns element `at` of a cache. `scale` is the index of the scale of its row.
template <typename T, bool FP8>
__device__ float cached_value(const void* cache, const float* scale_inv, std::int64_t at,
                              std::int64_t scale) {
  if constexpr (FP8) {
    return decoded(static_cast<const std::uint8_t*>(cache)[at], scale_inv[scale]);
  } else {
    return read_value(static_cast<const T*>(cache)[at]);
  }
}

/// Block (token, query head), for any head width. Each warp reads one key at a time.
template <typename T, bool FP8>
__global__ void __launch_bounds__(kAttentionThreads) attend_kernel(const Cached args) {
  __shared__ float maxima[kWarps], sums[kWarps];
  __shared__ float results[kWarps][kMostHeadDim];
  const std::int64_t token = blockIdx.x;
  const int head = static_cast<int>(blockIdx.y), kv_head = head / args.group();
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  T* out = out_row<T>(args, token, head);
  if (!args.inside(token)) {
    for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kAttentionThreads)
      write_value(out[i], args.outside);
    if (args.lse != nullptr && threadIdx.x == 0) args.lse[head * args.tokens + token] = args.outside;
    return;
  }
  RowsInTurn rows(args, args.slots[token]);
  const T* q = static_cast<const T*>(args.qkv) + token * args.qkv_ld + head * args.head_dim;
  float query[kPerLane], result[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    query[i] = lane + 32 * i < args.head_dim ? read_value(q[lane + 32 * i]) : 0.0f;
    result[i] = 0.0f;
  }
  const std::int64_t last = args.positions[token];
  float maximum = kLowest, sum = 0.0f;
  for (std::int64_t j = args.rule.first_key(last, 0) + warp; j <= last; j += kWarps) {
    const std::int64_t at = rows(j), row = args.element(at, kv_head), scale = at * args.kv_heads + kv_head;
    float dot = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i >= args.head_dim) continue;
      const float key = cached_value<T, FP8>(args.k_cache, args.k_scale_inv, row + lane + 32 * i, scale);
      dot = fmaf(query[i], key, dot);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) dot += __shfl_xor_sync(0xFFFFFFFFu, dot, step);
    float slope;
    const float score = args.rule.score(dot, slope);
    const float highest = fmaxf(maximum, score);
    const float factor = expf(maximum - highest), weight = expf(score - highest);
    maximum = highest;
    sum = sum * factor + weight;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i >= args.head_dim) continue;
      const float value = cached_value<T, FP8>(args.v_cache, args.v_scale_inv, row + lane + 32 * i, scale);
      result[i] = fmaf(weight, value, result[i] * factor);
    }
  }
  if (lane == 0) {
    maxima[warp] = maximum;
    sums[warp] = sum;
  }
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (lane + 32 * i < args.head_dim) results[warp][lane + 32 * i] = result[i];
  }
  __syncthreads();
  float highest = kLowest;
  for (int w = 0; w < kWarps; ++w) highest = fmaxf(highest, maxima[w]);
  float total = 0.0f;
  for (int w = 0; w < kWarps; ++w) total += sums[w] * expf(maxima[w] - highest);
  if (args.lse != nullptr && threadIdx.x == 0) args.lse[head * args.tokens + token] = highest + logf(total);
  for (int i = static_cast<int>(threadIdx.x); i < args.head_dim; i += kAttentionThreads) {
    float x = 0.0f;
    for (int w = 0; w < kWarps; ++w) x += results[w][i] * expf(maxima[w] - highest);
    write_value(out[i], x / total);
  }
}

unsigned grid(std::int64_t blocks) {
  return static_cast<unsigned>(blocks);
}

using Kernel = void (*)(Cached, Span);

void allow_shared(Kernel kernel, int bytes) {
  if (bytes <= 48 * 1024) return;
  const int most = most_shared_bytes();
  if (bytes > most) {
    throw Error({.what = "this GPU has too little shared memory for heads of this width",
                 .expected = std::to_string(bytes) + " bytes (compute capability 9.0 or 10.0)",
                 .found = std::to_string(most) + " bytes",
                 .fix = "generate with --dtype fp32, or on another GPU"});
  }
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                     "asking for shared memory");
}

/// Returns the number of tiles for the rows of a single token.
std::int64_t decode_tiles(const Cached& args, int rows) {
  return (args.group() + rows - 1) / rows;
}
std::int64_t prompt_tiles(const Cached& args, const Span& span, int rows) {
  return (span.count * args.group() + rows - 1) / rows;
}

/// Maximum number of keys of a block (or one piece, if that is longer). It keeps one long cache from delaying
/// many short ones.
constexpr std::int64_t kMostKeysOfBlock = 4096;

/// Returns the number of pieces to join for the shortest total time. Each piece has `rows` blocks, and
/// `together` blocks are resident on the GPU. The start and end of a block take about as long as one piece.
int pieces_to_join(std::int64_t rows, const Span& span, int together) {
  const auto most = static_cast<int>(std::max<std::int64_t>(1, kMostKeysOfBlock / span.piece));
  int best = 1;
  std::int64_t least = std::numeric_limits<std::int64_t>::max();
  for (int run = 1; run <= std::min(most, span.pieces); ++run) {
    const std::int64_t blocks = rows * ((span.pieces + run - 1) / run);
    const std::int64_t takes = (blocks + together - 1) / together * (run + 1);
    if (takes > least) continue;
    least = takes;
    best = run;
  }
  return best;
}

template <bool FP8_>
struct Bf16Kernels {
  using Value = __nv_bfloat16;
  static constexpr bool FP8 = FP8_;
  /// Runs `span`, a part of all `alone` tokens, after joining its pieces.
  template <int DIM>
  static void decode_tokens(cudaStream_t stream, const Cached& args, std::int64_t alone, Span& span) {
    if (args.group() > 8) return decode_rows<DecodeCut<DIM, 2, FP8>>(stream, args, alone, span);
    using Few = DecodeCut<DIM, 1, FP8>;
    // MANY is used only for more than two waves of blocks. On an H200, 64 sequences with eight KV heads (two
    // waves) are slower with more blocks per multiprocessor.
    const std::int64_t blocks = alone * args.kv_heads, turn = Few::BLOCKS * multiprocessors();
    blocks > 2 * turn ? decode_rows<DecodeCut<DIM, 1, FP8, true>>(stream, args, alone, span)
                      : decode_rows<Few>(stream, args, alone, span);
  }
  template <typename C>
  static void decode_rows(cudaStream_t stream, const Cached& args, std::int64_t alone, Span& span) {
    const std::int64_t a_token = decode_tiles(args, C::ROWS) * args.kv_heads;
    span.join(pieces_to_join(alone * a_token, span, C::BLOCKS * multiprocessors()));
    allow_shared(decode_bf16_kernel<C>, decode_bytes<C>());
    launch_early(decode_bf16_kernel<C>, dim3(grid(span.count * a_token), grid(span.pieces)), C::THREADS,
                 static_cast<std::size_t>(decode_bytes<C>()), stream, "cached_attention", args, span);
  }
  template <int DIM>
  static void prompt(cudaStream_t stream, const Cached& args, const Span& span) {
    using C = Bf16Cut<DIM, FP8>;
    const dim3 blocks(grid(prompt_tiles(args, span, C::ROWS)), grid(args.kv_heads));
    allow_shared(prompt_bf16_kernel<C>, C::BYTES);
    prompt_bf16_kernel<C><<<blocks, C::THREADS, C::BYTES, stream>>>(args, span);
    octet::cuda::check_launch("cached_attention");
  }
  template <int DIM>
  static void decode_in_order(cudaStream_t stream, const Cached& args, const Span& span) {
    using Deep = InOrderCut<DIM, 3>;
    Deep::BYTES <= most_shared_bytes() ? decode_in_order_by<Deep>(stream, args, span)
                                       : decode_in_order_by<InOrderCut<DIM, 2>>(stream, args, span);
  }
  template <typename C>
  static void decode_in_order_by(cudaStream_t stream, const Cached& args, const Span& span) {
    const dim3 blocks(grid(span.count * decode_tiles(args, C::ROWS)), grid(args.kv_heads));
    allow_shared(in_order_bf16_kernel<C>, C::BYTES);
    launch_early(in_order_bf16_kernel<C>, blocks, C::THREADS, C::BYTES, stream, "cached_attention", args,
                 span);
  }
};

template <bool FP8_>
struct Fp32Kernels {
  using Value = float;
  static constexpr bool FP8 = FP8_;
  template <int DIM>
  using Cut = Fp32Cut<DIM <= 128 ? 128 : 256, FP8>;
  template <int DIM>
  static void decode_tokens(cudaStream_t stream, const Cached& args, std::int64_t, const Span& span) {
    using C = Cut<DIM>;
    const dim3 blocks(grid(span.count * decode_tiles(args, C::ROWS)), grid(args.kv_heads), grid(span.pieces));
    launch_early(decode_fp32_kernel<C>, blocks, C::THREADS, 0, stream, "cached_attention", args, span);
  }
  /// With one piece, the keys of a single token are split among the warps and summed like the keys of a
  /// prompt.
  template <int DIM>
  static void decode_in_order(cudaStream_t stream, const Cached& args, const Span& span) {
    decode_tokens<DIM>(stream, args, span.count, span);
  }
  template <int DIM>
  static void prompt(cudaStream_t stream, const Cached& args, const Span& span) {
    using C = Cut<DIM>;
    const dim3 blocks(grid(prompt_tiles(args, span, C::ROWS)), grid(args.kv_heads));
    prompt_fp32_kernel<C><<<blocks, C::THREADS, 0, stream>>>(args, span);
    octet::cuda::check_launch("cached_attention");
  }
};

/// Runs the single tokens, in groups with pieces that fit into the workspace.
template <typename Kernels, int DIM>
void attend_alone(cudaStream_t stream, const Cached& args, std::int64_t alone, const Workspace& workspace) {
  const Heads heads{args.q_heads, args.kv_heads, args.head_dim};
  Span whole{.piece = cache_piece(args.capacity), .pieces = cache_pieces(args.capacity)};
  const std::size_t a_row = cached_row_bytes(heads, args.capacity);
  std::int64_t most = alone;
  if (whole.pieces > 1) {
    most = workspace.data == nullptr ? 0 : static_cast<std::int64_t>(workspace.bytes / a_row);
    if (most == 0) {  // no room for pieces
      most = alone;
      whole.pieces = 1;
      whole.piece = args.capacity;
    }
  }
  for (; whole.first < alone; whole.first += most) {
    Span span = whole;
    span.count = std::min(most, alone - span.first);
    if (span.pieces > 1) {
      span.values = static_cast<float*>(workspace.data);
      span.sums = span.values + span.count * args.q_heads * span.pieces * args.head_dim;
    }
    Kernels::template decode_tokens<DIM>(stream, args, alone, span);
    if (span.pieces == 1) continue;
    launch_early(combine_kernel<typename Kernels::Value>, dim3(grid(span.count), grid(args.q_heads)),
                 kCombineThreads, 0, stream, "cached_attention", args, span);
  }
}

template <typename Kernels, int DIM>
void attend_in_tiles(cudaStream_t stream, const Cached& args, const CachedAttentionArgs& a) {
  if (a.alone > 0 && a.fixed_order) {
    Kernels::template decode_in_order<DIM>(stream, args, {.count = a.alone, .piece = args.capacity});
  } else if (a.alone > 0) {
    attend_alone<Kernels, DIM>(stream, args, a.alone, a.workspace);
  }
  if (a.alone == a.qkv.rows) return;
  const Span span{.first = a.alone, .count = a.qkv.rows - a.alone, .piece = args.capacity};
  Kernels::template prompt<DIM>(stream, args, span);
}

/// True if all rows of heads are aligned to 16 bytes.
bool in_quads(const CachedAttentionArgs& a) {
  const std::int64_t unit = 16 / static_cast<std::int64_t>(size_of(a.qkv.dtype));
  const auto on_boundary = [](const void* address) {
    return reinterpret_cast<std::uintptr_t>(address) % 16 == 0;
  };
  // The bf16 kernels read 16 codes at a time.
  const bool codes = a.k_scale_inv == nullptr || a.qkv.dtype == DType::f32 || a.heads.head_dim % 16 == 0;
  return codes && a.heads.head_dim % unit == 0 && a.qkv.ld % unit == 0 && on_boundary(a.qkv.data) &&
         on_boundary(a.k_cache) && on_boundary(a.v_cache);
}

/// Without pages, a slot is one page: no position is in a second page.
int page_shift(const CachePages& pages) {
  return pages.table == nullptr ? 62 : std::countr_zero(static_cast<std::uint64_t>(pages.tokens));
}

Cached cached_of(const CachedAttentionArgs& a) {
  return {.qkv = a.qkv.data,
          .qkv_ld = a.qkv.ld,
          .slots = a.slots,
          .positions = a.positions,
          .k_cache = a.k_cache,
          .v_cache = a.v_cache,
          .k_scale_inv = a.k_scale_inv,
          .v_scale_inv = a.v_scale_inv,
          .row_stride = a.heads.kv_heads * a.heads.head_dim,
          .pages = a.pages.table,
          .page_pitch = a.pages.pitch,
          .page_shift = page_shift(a.pages),
          .capacity = a.capacity,
          .out = a.out.data,
          .out_ld = a.out.ld,
          .q_heads = static_cast<int>(a.heads.q_heads),
          .kv_heads = static_cast<int>(a.heads.kv_heads),
          .head_dim = static_cast<int>(a.heads.head_dim),
          .rule = {a.scale, a.soft_cap, a.window},
          .lse = a.lse,
          .tokens = a.qkv.rows};
}

template <typename Kernels>
void attend(cudaStream_t stream, const Cached& args, const CachedAttentionArgs& a, bool quads) {
  using T = typename Kernels::Value;
  if (!quads) {
    attend_kernel<T, Kernels::FP8>
        <<<dim3(grid(a.qkv.rows), grid(args.q_heads)), kAttentionThreads, 0, stream>>>(args);
    octet::cuda::check_launch("cached_attention");
    return;
  }
  if (args.head_dim <= 64) return attend_in_tiles<Kernels, 64>(stream, args, a);
  if (args.head_dim <= 96) return attend_in_tiles<Kernels, 96>(stream, args, a);
  if (args.head_dim <= 128) return attend_in_tiles<Kernels, 128>(stream, args, a);
  attend_in_tiles<Kernels, 256>(stream, args, a);
}

template <typename Kernels>
void run(cudaStream_t stream, const Cached& args, const CachedAttentionArgs& a) {
  const bool quads = in_quads(a);
  // The kernels of single tokens append their own keys.
  const std::int64_t first = quads ? a.alone : 0;
  if (first < a.qkv.rows) {
    append_kernel<typename Kernels::Value, Kernels::FP8>
        <<<grid(a.qkv.rows - first), kAttentionThreads, 0, stream>>>(args, first);
    octet::cuda::check_launch("cached_attention");
  }
  attend<Kernels>(stream, args, a, quads);
}

constexpr int kPlaceThreads = 256;

/// Finds the document and position of each token. Tokens outside all documents get -1.
__global__ void __launch_bounds__(kPlaceThreads)
    place_kernel(const DocumentMap documents, std::int64_t tokens, std::int32_t* slots,
                 std::int32_t* positions) {
  const std::int64_t token = static_cast<std::int64_t>(blockIdx.x) * kPlaceThreads + threadIdx.x;
  if (token >= tokens) return;
  const bool inside = token < documents.end();
  const std::int64_t document = inside ? documents.of(token) : -1;
  slots[token] = static_cast<std::int32_t>(document);
  positions[token] = inside ? static_cast<std::int32_t>(token - documents.cu_seqlens[document]) : 0;
}

}  // namespace

// The micro-batch serves as the cache: the prompt kernels read keys and values in place.
void own_attention_in_order(cudaStream_t stream, const AttentionArgs& a) {
  auto* slots = static_cast<std::int32_t*>(a.workspace.data);
  std::int32_t* positions = slots + a.qkv.rows;
  place_kernel<<<grid((a.qkv.rows + kPlaceThreads - 1) / kPlaceThreads), kPlaceThreads, 0, stream>>>(
      DocumentMap{a.documents.cu_seqlens, a.documents.count}, a.qkv.rows, slots, positions);
  octet::cuda::check_launch("attention");
  const std::int64_t queries = a.heads.q_heads * a.heads.head_dim;
  const std::int64_t values = queries + a.heads.kv_heads * a.heads.head_dim;
  auto* qkv = static_cast<std::uint8_t*>(const_cast<void*>(a.qkv.data));  // nothing is appended
  const CachedAttentionArgs as_cache{
      .qkv = a.qkv,
      .heads = a.heads,
      .slots = slots,
      .positions = positions,
      .k_cache = qkv + static_cast<std::size_t>(queries) * size_of(a.qkv.dtype),
      .v_cache = qkv + static_cast<std::size_t>(values) * size_of(a.qkv.dtype),
      .capacity = std::max<std::int64_t>(1, a.documents.max_length),
      .scale = a.scale,
      .soft_cap = a.soft_cap,
      .window = a.window,
      .out = a.out,
      .fixed_order = true};
  Cached args = cached_of(as_cache);
  args.row_stride = a.qkv.ld;
  args.starts = a.documents.cu_seqlens;
  args.lse = a.lse;
  args.tokens = a.qkv.rows;
  args.outside = 0.0f;
  const bool quads = in_quads(as_cache);
  a.qkv.dtype == DType::f32 ? attend<Fp32Kernels<false>>(stream, args, as_cache, quads)
                            : attend<Bf16Kernels<false>>(stream, args, as_cache, quads);
}

void own_cached_attention(cudaStream_t stream, const CachedAttentionArgs& a) {
  const Cached args = cached_of(a);
  const bool wide = a.qkv.dtype == DType::f32;
  if (a.k_scale_inv == nullptr) {
    return wide ? run<Fp32Kernels<false>>(stream, args, a) : run<Bf16Kernels<false>>(stream, args, a);
  }
  wide ? run<Fp32Kernels<true>>(stream, args, a) : run<Bf16Kernels<true>>(stream, args, a);
}

}  // namespace octet::ops::cuda
