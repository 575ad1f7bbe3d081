// A GEMM of few tokens reads its weight once and does little else: this kernel streams the rows of the weight
// through tensor cores, whose 16 rows they fill, with tokens as the columns.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/early_launch.cuh"
#include "cuda/mma.cuh"

namespace octet::ops::cuda {

/// D [tokens, outputs] = factor * A · Bᵀ + bias + addend, with A [tokens, inner] and B [outputs, inner] in
/// bf16, rows on 16-byte boundaries, inner a multiple of 32.
struct FewRows {
  const __nv_bfloat16* a;
  const __nv_bfloat16* b;
  void* d;
  const void* addend;  ///< as D lies, or null; D itself adds to D
  const float* bias;   ///< [outputs], or null
  std::int64_t a_ld, b_ld, d_ld;
  std::int64_t inner;
  int tokens, outputs;
  float factor;
};

/// A block makes 16 outputs of up to 8 * TOKEN_TILES tokens at a time and then the next ones: the weight runs
/// through a ring of chunks in shared memory that is never empty. The warps share the values of a chunk; at
/// the end of a row their sums are added in order.
template <int TOKEN_TILES_>
struct FewRowsCut {
  static constexpr int TOKEN_TILES = TOKEN_TILES_;
  static constexpr int WARPS = 8;
  static constexpr int THREADS = 32 * WARPS;
  static constexpr int OUTPUTS = 16;
  static constexpr int TOKENS = 8 * TOKEN_TILES;
  static constexpr int STEPS = 2;                   ///< runs of 32 values that a warp takes of a chunk
  static constexpr int CHUNK = WARPS * STEPS * 32;  ///< values of a row
  static constexpr int PITCH = CHUNK * 2 + 64;      ///< bytes: two rows that are read together share no bank
  static constexpr int STAGE = OUTPUTS * PITCH;
  static constexpr int STAGES = 8;
  static constexpr int SUMS = WARPS * TOKENS * OUTPUTS;
  static constexpr int BYTES = STAGES * STAGE + SUMS * 4;
};

/// 16 bytes that others read, too. Not by way of the read-only cache: the kernel that wrote them may have
/// been running when this one began.
__device__ inline uint4 read_often(const __nv_bfloat16* from) {
  return *reinterpret_cast<const uint4*>(from);
}

__device__ inline float as_float(float x) {
  return x;
}
__device__ inline float as_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ inline void store_float(float& to, float x) {
  to = x;
}
__device__ inline void store_float(__nv_bfloat16& to, float x) {
  to = __float2bfloat16_rn(x);
}

/// Where a block stands among what it multiplies, one chunk after the other: every chunk of the inner
/// dimension of a tile of outputs, then those of its next tile. Counted, since a division takes as long as a
/// chunk.
template <typename C>
struct FewRowsPlace {
  int chunk = 0;   ///< of a row
  int output = 0;  ///< the tile's first
  __device__ void advance(int chunks) {
    if (++chunk < chunks) return;
    chunk = 0;
    output += static_cast<int>(gridDim.x) * C::OUTPUTS;
  }
};

/// A thread's share of the copies of a chunk: 16 bytes of every fourth row.
template <typename C>
class FewRowsCopies {
 public:
  __device__ FewRowsCopies(const FewRows& args, int output) : args_(args) {
    static_assert(C::THREADS % kPieces == 0 && C::OUTPUTS % kRows == 0);
    place_.output = output;
    aim();
  }
  /// Asks for the next chunk: zeros behind the inner dimension.
  __device__ void fetch(unsigned char* stage, int chunks) {
    const std::int64_t value = static_cast<std::int64_t>(place_.chunk) * C::CHUNK;
    const bool inside = value + column() < args_.inner;
    unsigned char* const to = stage + static_cast<int>(threadIdx.x) / kPieces * C::PITCH + column() * 2;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      copy_16(to + i * kRows * C::PITCH, from_[i] + (inside ? value : 0), inside);
    place_.advance(chunks);
    if (place_.chunk == 0) aim();
  }

 private:
  static constexpr int kPieces = C::CHUNK / 8;        ///< of a row
  static constexpr int kRows = C::THREADS / kPieces;  ///< that threads copy side by side
  static constexpr int kEach = C::OUTPUTS / kRows;
  __device__ static int column() {
    return static_cast<int>(threadIdx.x) % kPieces * 8;
  }
  __device__ void aim() {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      // Rows behind the last one repeat it; nobody writes what comes of them.
      const int row =
          min(place_.output + static_cast<int>(threadIdx.x) / kPieces + i * kRows, args_.outputs - 1);
      const std::int64_t at = column() < args_.inner ? column() : 0;
      from_[i] = args_.b + row * args_.b_ld + at;
    }
  }
  const FewRows& args_;
  FewRowsPlace<C> place_;
  const __nv_bfloat16* from_[kEach];
};

/// The first lines of a block's rows, to the GPU's cache.
template <typename C>
__device__ void announce(const FewRows& args, int output) {
  constexpr int LINE = 64, lines = C::CHUNK * (C::STAGES - 1) / LINE;  // values
  for (int i = static_cast<int>(threadIdx.x); i < C::OUTPUTS * lines; i += C::THREADS) {
    const int row = output + i / lines, at = i % lines * LINE;
    if (row < args.outputs && at < args.inner) prefetch(args.b + row * args.b_ld + at);
  }
}

/// Writes 16 outputs of all tokens, from the sums of all warps.
template <typename C, typename T>
__device__ void write_outputs(const FewRows& args, int first, const float* sums) {
  for (int i = static_cast<int>(threadIdx.x); i < C::TOKENS * C::OUTPUTS; i += C::THREADS) {
    const int token = i / C::OUTPUTS, output = first + i % C::OUTPUTS;
    if (token >= args.tokens || output >= args.outputs) continue;
    float x = 0.0f;
#pragma unroll
    for (int w = 0; w < C::WARPS; ++w) x += sums[w * C::TOKENS * C::OUTPUTS + i];
    x *= args.factor;
    if (args.bias != nullptr) x += args.bias[output];
    const std::int64_t place = token * args.d_ld + output;
    if (args.addend != nullptr) x += as_float(static_cast<const T*>(args.addend)[place]);
    store_float(static_cast<T*>(args.d)[place], x);
  }
}

/// A lane reads eight values of a row at a time and takes them as two and two of both halves of two tensor
/// core steps. Tokens are read in the same order, so that every value meets its own.
template <typename C, typename T>
__global__ void __launch_bounds__(C::THREADS) few_rows_kernel(const FewRows args) {
  unsigned char* const ring = dynamic_shared();
  auto* const sums = reinterpret_cast<float*>(ring + C::STAGES * C::STAGE);
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int row = lane / 4, column = warp * C::STEPS * 32 + lane % 4 * 8;  // of a chunk
  const int chunks = static_cast<int>((args.inner + C::CHUNK - 1) / C::CHUNK);
  const int tiles = (args.outputs + C::OUTPUTS - 1) / C::OUTPUTS, mine = static_cast<int>(blockIdx.x);
  const int items = ((tiles - 1 - mine) / static_cast<int>(gridDim.x) + 1) * chunks;  // blocks have a tile
  let_next_begin();
  announce<C>(args, mine * C::OUTPUTS);
  wait_for_previous();
  FewRowsCopies<C> copies(args, mine * C::OUTPUTS);
#pragma unroll
  for (int item = 0; item < C::STAGES - 1; ++item) {
    if (item < items) copies.fetch(ring + item * C::STAGE, chunks);
    end_copies();
  }
  const __nv_bfloat16* tokens[C::TOKEN_TILES];
#pragma unroll
  for (int t = 0; t < C::TOKEN_TILES; ++t) {
    tokens[t] = args.a + min(8 * t + row, args.tokens - 1) * args.a_ld + column;
  }
  uint4 next[C::STEPS][C::TOKEN_TILES];
  const auto read_tokens = [&](int chunk) {
    const std::int64_t value = static_cast<std::int64_t>(chunk) * C::CHUNK;
#pragma unroll
    for (int i = 0; i < C::STEPS; ++i) {
      const bool inside = value + column + 32 * i < args.inner;
#pragma unroll
      for (int t = 0; t < C::TOKEN_TILES; ++t) {
        next[i][t] = inside ? read_often(tokens[t] + value + 32 * i) : make_uint4(0, 0, 0, 0);
      }
    }
  };
  read_tokens(0);
  float all[C::TOKEN_TILES][4] = {};
  FewRowsPlace<C> place{.chunk = 0, .output = mine * C::OUTPUTS};
  for (int item = 0; item < items; ++item) {
    wait_for_copies<C::STAGES - 2>();
    __syncthreads();  // everybody's copies of this chunk are there, and nobody reads the one before
    const int ahead = item + C::STAGES - 1;
    if (ahead < items) copies.fetch(ring + ahead % C::STAGES * C::STAGE, chunks);
    end_copies();
    uint4 a[C::STEPS][C::TOKEN_TILES];
#pragma unroll
    for (int i = 0; i < C::STEPS; ++i) {
#pragma unroll
      for (int t = 0; t < C::TOKEN_TILES; ++t) a[i][t] = next[i][t];
    }
    const bool ends = place.chunk + 1 == chunks;
    read_tokens(ends ? 0 : place.chunk + 1);
    const unsigned char* const weights = ring + item % C::STAGES * C::STAGE + row * C::PITCH + column * 2;
#pragma unroll
    for (int i = 0; i < C::STEPS; ++i) {
      const uint4 upper = *reinterpret_cast<const uint4*>(weights + 64 * i);
      const uint4 lower = *reinterpret_cast<const uint4*>(weights + 8 * C::PITCH + 64 * i);
      const std::uint32_t first_step[4] = {upper.x, lower.x, upper.y, lower.y};
      const std::uint32_t second_step[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
      for (int t = 0; t < C::TOKEN_TILES; ++t) {
        multiply_add(all[t], first_step, a[i][t].x, a[i][t].y);
        multiply_add(all[t], second_step, a[i][t].z, a[i][t].w);
      }
    }
    if (ends) {
#pragma unroll
      for (int t = 0; t < C::TOKEN_TILES; ++t) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int token = 8 * t + lane % 4 * 2 + e % 2;
          sums[(warp * C::TOKENS + token) * C::OUTPUTS + row + 8 * (e / 2)] = all[t][e];
          all[t][e] = 0.0f;
        }
      }
      __syncthreads();
      // The next barrier of the ring stands between these reads and what the next tile writes.
      write_outputs<C, T>(args, place.output, sums);
    }
    place.advance(chunks);
  }
  wait_for_copies<0>();
}

}  // namespace octet::ops::cuda
