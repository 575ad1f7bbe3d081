// GEMMs of few tokens that stream the weight through shared memory. A tile is 64 outputs of all tokens; the
// runs of the inner dimension of all tiles, one tile behind the other, are dealt to as many blocks as there
// are multiprocessors, so that all read equally many bytes of the weight, whatever its shape ("Stream-K",
// Osama et al., arXiv:2301.03598). Who has the first runs of a tile adds what others have summed of it, in
// their order, and writes it. One warp asks for what the others multiply: as many runs ahead as the ring
// holds, and those of the weight before the kernel in front has ended.
#include "cuda/gemm/streamed.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <cstdint>

#include "cuda/bulk_copies.cuh"
#include "cuda/early_launch.cuh"
#include "cuda/rows.cuh"
#include "cuda/scratch.h"
#include "cuda/tensor_map.h"
#include "cuda/warpgroup.cuh"
#include "gemm_plan.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {
namespace {

constexpr int kRowBytes = 128;  ///< of an operand's row in a tile of the copy engine: as many codes
constexpr int kOutputs = 64;    ///< that a warpgroup makes, of which a block has one
constexpr int kGroupThreads = 128;
constexpr int kThreads = kGroupThreads + kWarp;
constexpr int kSteps = 4;  ///< of a product's instruction in kRowBytes
/// Up to so many tokens multiply_few_tokens() is as fast, and its sums are fp32 throughout.
constexpr std::int64_t kTokensOfFullSums = 16;
/// Runs that a block has still to ask for when it lets the next kernel begin. Small kernels that begin at
/// once hold room and bring the next GEMM, whose ring then fills while this one needs the memory, and not in
/// the pause between them.
constexpr int kRunsLeft = 4;

/// How the work is cut: TOKENS is what a tile has room for, WIDTH how many kRowBytes of the inner dimension
/// are a run, STAGES how many runs the ring holds. Measured on an H200: about 96 KiB a ring, so that the next
/// GEMM's stands beside it.
template <int TOKENS_, int WIDTH_, int STAGES_>
struct Cut {
  static constexpr int TOKENS = TOKENS_;
  static constexpr int WIDTH = WIDTH_;
  static constexpr int STAGES = STAGES_;
  static constexpr int SUMS = TOKENS / 2;  ///< of a thread
  static constexpr int WEIGHT_BYTES = kOutputs * kRowBytes;
  static constexpr int TOKEN_BYTES = TOKENS * kRowBytes;
  static constexpr int STAGE_BYTES = (WEIGHT_BYTES + TOKEN_BYTES) * WIDTH;
  static constexpr std::size_t SHARED_BYTES = std::size_t{STAGES} * STAGE_BYTES + 1024;
};

struct Streamed {
  const float* a_scales;  ///< [tokens]
  const float* b_scales;  ///< [outputs]
  const float* bias;      ///< [outputs], or null
  void* d;                ///< [tokens, d_ld], bf16 or f32
  const void* addend;     ///< as D lies, or null
  std::int64_t d_ld;
  bool f32;  ///< D
  float4* partials;
  unsigned* marks;  ///< of each block: 1 while its partial sums wait to be added
  int tokens, outputs;
  int runs, tiles;  ///< runs of a tile
};

/// The runs of a block, counted through all tiles.
__device__ inline int first_run(const Streamed& args, int block) {
  return static_cast<int>(static_cast<std::int64_t>(args.tiles) * args.runs * block / gridDim.x);
}

/// Where the ring stands: a stage, and the phase that its barriers end next.
template <typename C>
struct Place {
  int stage = 0, phase = 0;
  __device__ void advance() {
    if (++stage < C::STAGES) return;
    stage = 0;
    phase ^= 1;
  }
};

template <typename C>
struct Ring {
  std::uint8_t* data;
  Barrier* filled;   ///< [STAGES]
  Barrier* emptied;  ///< [STAGES]
  __device__ std::uint8_t* weight(int stage, int part) const {
    return data + stage * C::STAGE_BYTES + part * C::WEIGHT_BYTES;
  }
  __device__ std::uint8_t* tokens(int stage, int part) const {
    return data + stage * C::STAGE_BYTES + C::WIDTH * C::WEIGHT_BYTES + part * C::TOKEN_BYTES;
  }
};

/// By one thread: asks for all runs of the block.
template <typename C>
__device__ void fill(const Streamed& args, const CUtensorMap& weight, const CUtensorMap& tokens,
                     const Ring<C>& ring) {
  const int begin = first_run(args, static_cast<int>(blockIdx.x));
  const int end = first_run(args, static_cast<int>(blockIdx.x) + 1);
  const auto ask_weight = [&](int run, int stage) {
    arrive_for_bytes(ring.filled[stage], C::STAGE_BYTES);
    for (int part = 0; part < C::WIDTH; ++part) {
      copy_tile(ring.weight(stage, part), weight, run / args.runs * kOutputs,
                (run % args.runs * C::WIDTH + part) * kRowBytes, ring.filled[stage], Reread::never);
    }
  };
  const auto ask_tokens = [&](int run, int stage) {
    for (int part = 0; part < C::WIDTH; ++part) {
      copy_tile(ring.tokens(stage, part), tokens, 0, (run % args.runs * C::WIDTH + part) * kRowBytes,
                ring.filled[stage], Reread::often);
    }
  };
  const int ahead = min(C::STAGES, end - begin);
  // The weight does not depend on the kernels in front of this one.
  for (int i = 0; i < ahead; ++i) ask_weight(begin + i, i);
  if (end - begin - ahead <= kRunsLeft) let_next_begin();
  wait_for_previous();
  for (int i = 0; i < ahead; ++i) ask_tokens(begin + i, i);
  Place<C> place;
  for (int run = begin + C::STAGES; run < end; ++run) {
    wait_for_phase(ring.emptied[place.stage], place.phase);
    ask_weight(run, place.stage);
    ask_tokens(run, place.stage);
    place.advance();
    if (end - run == kRunsLeft) let_next_begin();
  }
}

/// Begins the products of a run.
template <typename C>
__device__ void begin_run(const Ring<C>& ring, const Place<C>& place, float (&sums)[C::SUMS]) {
  wait_for_phase(ring.filled[place.stage], place.phase);
  begin_products();
#pragma unroll
  for (int part = 0; part < C::WIDTH; ++part) {
    const std::uint8_t* const outputs = ring.weight(place.stage, part);
    const std::uint8_t* const tokens = ring.tokens(place.stage, part);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = step * (kRowBytes / kSteps);
      warpgroup_multiply<C::TOKENS>(sums, warpgroup_operand(outputs + at), warpgroup_operand(tokens + at),
                                    part + step > 0);
    }
  }
  end_products();
}

template <int COUNT>
__device__ inline void add_sums(float (&sums)[COUNT], float (&more)[COUNT]) {
  take_sums(more);
#pragma unroll
  for (int i = 0; i < COUNT; ++i) sums[i] += more[i];
}

/// Sums `count` runs from `place` on. Of a run the tensor cores keep about 14 bits, of all runs fp32
/// keeps 24.
template <typename C>
__device__ void sum_runs(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  const auto leave = [&](int stage) {
    if (threadIdx.x == 0) arrive(ring.emptied[stage]);
  };
  float first[C::SUMS], second[C::SUMS];
#pragma unroll
  for (int i = 0; i < C::SUMS; ++i) sums[i] = 0.0f;
  if (count % 2 != 0) {
    begin_run<C>(ring, place, first);
    wait_for_products<0>();
    add_sums(sums, first);
    leave(place.stage);
    place.advance();
  }
  // Two at a time: the second is multiplied while the first is added.
  for (int i = count % 2; i < count; i += 2) {
    begin_run<C>(ring, place, first);
    const int before = place.stage;
    place.advance();
    begin_run<C>(ring, place, second);
    wait_for_products<1>();
    add_sums(sums, first);
    leave(before);
    wait_for_products<0>();
    add_sums(sums, second);
    leave(place.stage);
    place.advance();
  }
}

/// A barrier of the threads that multiply.
__device__ inline void meet() {
  asm volatile("bar.sync 1, %0;" ::"n"(kGroupThreads) : "memory");
}

template <typename C>
__device__ float4* partials_of(const Streamed& args, int block) {
  return args.partials + static_cast<std::int64_t>(block) * (C::SUMS / 4) * kGroupThreads + threadIdx.x;
}

/// Leaves sums for the block that has the tile's first runs.
template <typename C>
__device__ void leave_partials(const Streamed& args, const float (&sums)[C::SUMS]) {
  const int block = static_cast<int>(blockIdx.x);
  float4* const to = partials_of<C>(args, block);
#pragma unroll
  for (int i = 0; i < C::SUMS / 4; ++i) {
    to[i * kGroupThreads] = make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
  }
  __threadfence();
  meet();
  if (threadIdx.x == 0) {
    asm volatile("st.release.gpu.global.u32 [%0], 1;" ::"l"(args.marks + block) : "memory");
  }
}

/// Adds what the blocks behind this one have summed of a tile, of which this one has the runs up to `end`.
template <typename C>
__device__ void add_partials(const Streamed& args, int end, int tile_end, float (&sums)[C::SUMS]) {
  for (int block = static_cast<int>(blockIdx.x) + 1; end < tile_end; ++block) {
    unsigned* const mark = args.marks + block;
    if (threadIdx.x == 0) {
      unsigned there = 0;
      while (there == 0)
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(there) : "l"(mark) : "memory");
    }
    meet();
    const float4* const from = partials_of<C>(args, block);
#pragma unroll
    for (int i = 0; i < C::SUMS / 4; ++i) {
      const float4 more = __ldcg(from + i * kGroupThreads);
      sums[4 * i] += more.x;
      sums[4 * i + 1] += more.y;
      sums[4 * i + 2] += more.z;
      sums[4 * i + 3] += more.w;
    }
    meet();
    if (threadIdx.x == 0) *mark = 0;
    end = first_run(args, block + 1);
  }
}

/// Of a thread's sums, those of one of its two outputs: token and place among the sums.
template <typename C, typename Act>
__device__ inline void each_token(const Streamed& args, Act&& act) {
  const int first = static_cast<int>(threadIdx.x) % kWarp % 4 * 2;
#pragma unroll
  for (int i = 0; i < C::SUMS / 2; ++i) {
    const int token = i / 2 * 8 + first + i % 2;
    if (token < args.tokens) act(token, i);
  }
}

/// A thread's two outputs of all tokens. What they need besides the sums is asked for when this is made.
template <typename C, typename T>
class Outputs {
 public:
  __device__ Outputs(const Streamed& args, int first_output)
      : args_(args),
        first_(first_output + static_cast<int>(threadIdx.x) / kWarp * 16 +
               static_cast<int>(threadIdx.x) % kWarp / 4) {
    each_token<C>(args, [&](int token, int i) { token_scales_[i] = args.a_scales[token]; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first_ + 8 * half;
      if (output >= args.outputs) continue;
      scales_[half] = args.b_scales[output];
      bias_[half] = args.bias != nullptr ? args.bias[output] : 0.0f;
      if (args.addend == nullptr) continue;
      const T* const addend = static_cast<const T*>(args.addend) + output;
      each_token<C>(args, [&](int token, int i) { addend_[half][i] = addend[token * args.d_ld]; });
    }
  }

  __device__ void write(const float (&sums)[C::SUMS]) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first_ + 8 * half;
      if (output >= args_.outputs) continue;
      T* const to = static_cast<T*>(args_.d) + output;
      each_token<C>(args_, [&](int token, int i) {
        const float scale = scales_[half] * token_scales_[i];
        T result = from_float<T>(sums[i / 2 * 4 + half * 2 + i % 2] * scale + bias_[half]);
        // Rounded before, as on a CPU and where the library multiplies: the bits of a sum made afterwards.
        if (args_.addend != nullptr) result = from_float<T>(to_float(result) + to_float(addend_[half][i]));
        to[token * args_.d_ld] = result;
      });
    }
  }

 private:
  const Streamed& args_;
  int first_;
  float scales_[2] = {}, bias_[2] = {};
  float token_scales_[C::SUMS / 2];
  T addend_[2][C::SUMS / 2];
};

/// Adds what others have summed of a tile to what this block has, its runs up to `end`, and writes it.
template <typename C, typename T>
__device__ void finish_tile(const Streamed& args, int tile, int end, float (&sums)[C::SUMS]) {
  const Outputs<C, T> outputs(args, tile * kOutputs);
  add_partials<C>(args, end, (tile + 1) * args.runs, sums);
  outputs.write(sums);
}

template <typename C>
__global__ void __launch_bounds__(kThreads)
    streamed_kernel(const __grid_constant__ CUtensorMap weight, const __grid_constant__ CUtensorMap tokens,
                    const Streamed args) {
  __shared__ Barrier filled[C::STAGES], emptied[C::STAGES];
  // The swizzle is one of addresses: it begins at their multiples of 1024.
  std::uint8_t* const shared = dynamic_shared();
  const Ring<C> ring{
      .data = shared + (1024 - shared_address(shared) % 1024) % 1024, .filled = filled, .emptied = emptied};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < C::STAGES; ++stage) {
      make_barrier(filled[stage], 1);
      make_barrier(emptied[stage], 1);
    }
    open_barriers();
  }
  __syncthreads();
  if (threadIdx.x >= kGroupThreads) {
    if (threadIdx.x == kGroupThreads) fill<C>(args, weight, tokens, ring);
    return;
  }
  wait_for_previous();
  const int end = first_run(args, static_cast<int>(blockIdx.x) + 1);
  Place<C> place;
  for (int run = first_run(args, static_cast<int>(blockIdx.x)); run < end;) {
    const int tile = run / args.runs, tile_end = (tile + 1) * args.runs;
    const bool first = run % args.runs == 0;
    const int next = min(end, tile_end);
    float sums[C::SUMS];
    sum_runs<C>(ring, place, next - run, sums);
    run = next;
    if (!first) {
      leave_partials<C>(args, sums);
      continue;
    }
    args.f32 ? finish_tile<C, float>(args, tile, next, sums)
             : finish_tile<C, __nv_bfloat16>(args, tile, next, sums);
  }
}

template <typename C>
bool launch(Stream& stream, const GemmArgs& args, Streamed streamed) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t runs = ceil_div(b.cols, std::int64_t{kRowBytes} * C::WIDTH);
  const std::int64_t tiles = ceil_div(b.rows, kOutputs);
  if (runs * tiles >= most) return false;
  const std::int64_t blocks =
      std::min<std::int64_t>(octet::cuda::properties(stream.device()).multiprocessors, runs * tiles);
  constexpr std::size_t partial = std::size_t{kGroupThreads} * C::SUMS * sizeof(float);
  if (static_cast<std::size_t>(blocks) * partial > kLibraryWorkspace || blocks > octet::cuda::kMarks) {
    return false;
  }
  streamed.runs = static_cast<int>(runs);
  streamed.tiles = static_cast<int>(tiles);
  const CUtensorMap weight =
      tensor_map({.data = b.data, .rows = b.rows, .bytes = b.cols, .tile_rows = kOutputs});
  const CUtensorMap tokens =
      tensor_map({.data = a.data, .rows = a.rows, .bytes = a.cols, .tile_rows = C::TOKENS});
  octet::cuda::check(cudaFuncSetAttribute(streamed_kernel<C>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(C::SHARED_BYTES)),
                     "cudaFuncSetAttribute");
  launch_early(streamed_kernel<C>, dim3(static_cast<unsigned>(blocks)), kThreads, C::SHARED_BYTES,
               octet::cuda::native(stream), "gemm", weight, tokens, streamed);
  return true;
}

bool fits(const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  return args.product == Product::forward && args.b_stands && !args.accumulate && a.dtype == DType::e4m3 &&
         b.dtype == DType::e4m3 && a.scaling == Scaling::whole_rows && b.scaling == Scaling::whole_rows &&
         a.rows > kTokensOfFullSums && a.rows <= kStreamedTokens && b.rows > 0 && a.cols > 0 &&
         a.cols % 16 == 0 && on_boundary(a.data) && on_boundary(b.data);
}

}  // namespace

bool multiply_streamed(Stream& stream, const GemmArgs& args, void* partials) {
  // Code for other GPUs has no products of warpgroups.
  if (!fits(args) || octet::cuda::code_here() != 90) return false;
  const Streamed streamed{.a_scales = args.a.scale_inv,
                          .b_scales = args.b.scale_inv,
                          .bias = args.bias,
                          .d = args.d.data,
                          .addend = args.addend.data,
                          .d_ld = args.d.ld,
                          .f32 = args.d.dtype == DType::f32,
                          .partials = static_cast<float4*>(partials),
                          .marks = octet::cuda::marks(stream),
                          .tokens = static_cast<int>(args.a.rows),
                          .outputs = static_cast<int>(args.b.rows)};
  return args.a.rows <= 32 ? launch<Cut<32, 2, 4>>(stream, args, streamed)
                           : launch<Cut<64, 1, 6>>(stream, args, streamed);
}

}  // namespace octet::ops::cuda
