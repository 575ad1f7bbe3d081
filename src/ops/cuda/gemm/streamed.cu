// GEMMs of few tokens that stream the weight through shared memory. A tile is 64 outputs of all tokens; the
// runs of the inner dimension of all tiles, one tile behind the other, are dealt to as many blocks as there
// are multiprocessors, so that all read equally many bytes of the weight, whatever its shape ("Stream-K",
// Osama et al., arXiv:2301.03598). Who has the first runs of a tile adds what others have summed of it, in
// their order, and writes it; each thread by itself, since the last tiles of all blocks end at the same time,
// and nothing hides what they wait for there. One warp asks for what the others multiply: as many runs ahead
// as the ring holds, and those of the weight before the kernel in front has ended.
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

constexpr int kRowBytes = 128;  ///< of an operand's row in a tile of the copy engine
constexpr int kOutputs = 64;    ///< that a warpgroup makes, of which a block has one
constexpr int kGroupThreads = 128;
constexpr int kThreads = kGroupThreads + kWarp;
constexpr int kSteps = 4;  ///< of a product's instruction in kRowBytes
/// Up to so many tokens multiply_few_tokens() is as fast, and its sums are fp32 throughout.
constexpr std::int64_t kTokensOfFullSums = 16;
/// In bf16 the library is as fast up to the first number of tokens, and faster behind the second.
constexpr std::int64_t kTokensOfTheLibrary = 8, kMostTokensInBf16 = 32;
/// Runs that a block has still to ask for when it lets the next kernel begin. Small kernels that begin at
/// once hold room and bring the next GEMM, whose ring then fills while this one needs the memory, and not in
/// the pause between them.
constexpr int kRunsLeft = 4;

/// How the work is cut: FP8 says whether operands are in E4M3 or bf16, TOKENS is what a tile has room for,
/// WIDTH how many kRowBytes of the inner dimension are a run, STAGES how many runs the ring holds. Measured
/// on an H200: 80 to 120 KiB a ring. Beside larger ones no block of attention stands (cached_lone.cuh), whose
/// cache would be on its way while a ring runs empty.
template <bool FP8_, int TOKENS_, int WIDTH_, int STAGES_>
struct Cut {
  static constexpr bool FP8 = FP8_;
  static constexpr int TOKENS = TOKENS_;
  static constexpr int WIDTH = WIDTH_;
  static constexpr int STAGES = STAGES_;
  static constexpr int SUMS = TOKENS / 2;  ///< of a thread
  static constexpr int QUADS = SUMS / 4;
  static constexpr int WEIGHT_BYTES = kOutputs * kRowBytes;
  static constexpr int TOKEN_BYTES = TOKENS * kRowBytes;
  static constexpr int STAGE_BYTES = (WEIGHT_BYTES + TOKEN_BYTES) * WIDTH;
  static constexpr std::size_t SHARED_BYTES = std::size_t{STAGES} * STAGE_BYTES + 1024;
};

struct Streamed {
  const float* a_scales;  ///< [tokens], of E4M3
  const float* b_scales;  ///< [outputs]
  const float* bias;      ///< [outputs], or null
  void* d;                ///< [tokens, d_ld], bf16 or f32
  const void* addend;     ///< as D lies, or null
  std::int64_t d_ld;
  uint4* exchange;  ///< sums of tiles that wait to be added; all bits set where none do
  int tokens, outputs;
  int runs, tiles;            ///< runs of a tile
  bool in_order = false;      ///< see multiply_streamed_in_order(): blocks have whole tiles
  bool adds_at_once = false;  ///< Addition::at_once
};

/// The runs of a block, counted through all tiles.
__device__ inline int first_run(const Streamed& args, int block) {
  if (args.in_order)
    return static_cast<int>(static_cast<std::int64_t>(args.tiles) * block / gridDim.x) * args.runs;
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

/// Begins the products of a run; `adds`: to what the sums are, else to zero.
template <typename C>
__device__ void begin_run(const Ring<C>& ring, const Place<C>& place, float (&sums)[C::SUMS], bool adds) {
  wait_for_phase(ring.filled[place.stage], place.phase);
  begin_products();
#pragma unroll
  for (int part = 0; part < C::WIDTH; ++part) {
    const std::uint8_t* const outputs = ring.weight(place.stage, part);
    const std::uint8_t* const tokens = ring.tokens(place.stage, part);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int at = step * (kRowBytes / kSteps);
      warpgroup_multiply<C::FP8, C::TOKENS>(sums, warpgroup_operand(outputs + at),
                                            warpgroup_operand(tokens + at), adds || part + step > 0);
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

/// By one thread: the stage may be filled again.
template <typename C>
__device__ inline void leave(const Ring<C>& ring, int stage) {
  if (threadIdx.x == 0) arrive(ring.emptied[stage]);
}

/// Sums `count` runs in E4M3 from `place` on. Of a run the tensor cores keep about 14 bits, of all runs fp32
/// keeps 24.
template <typename C>
__device__ void sum_runs_apart(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  float first[C::SUMS], second[C::SUMS];
#pragma unroll
  for (int i = 0; i < C::SUMS; ++i) sums[i] = 0.0f;
  if (count % 2 != 0) {
    begin_run<C>(ring, place, first, false);
    wait_for_products<0>();
    add_sums(sums, first);
    leave(ring, place.stage);
    place.advance();
  }
  // Two at a time: the second is multiplied while the first is added.
  for (int i = count % 2; i < count; i += 2) {
    begin_run<C>(ring, place, first, false);
    const int before = place.stage;
    place.advance();
    begin_run<C>(ring, place, second, false);
    wait_for_products<1>();
    add_sums(sums, first);
    leave(ring, before);
    wait_for_products<0>();
    add_sums(sums, second);
    leave(ring, place.stage);
    place.advance();
  }
}

/// The same in bf16, whose sums are fp32 throughout.
template <typename C>
__device__ void sum_runs_together(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  int before = 0;
  for (int i = 0; i < count; ++i) {
    begin_run<C>(ring, place, sums, i > 0);
    if (i > 0) {
      wait_for_products<1>();
      leave(ring, before);
    }
    before = place.stage;
    place.advance();
  }
  wait_for_products<0>();
  take_sums(sums);
  leave(ring, before);
}

template <typename C>
__device__ void sum_runs(const Ring<C>& ring, Place<C>& place, int count, float (&sums)[C::SUMS]) {
  if constexpr (C::FP8) {
    sum_runs_apart<C>(ring, place, count, sums);
  } else {
    sum_runs_together<C>(ring, place, count, sums);
  }
}

/// No sum has these bits: what is no number has others (leave_partials()).
constexpr unsigned kNothing = 0xFFFFFFFFu;

/// Where this thread of a block leaves its sums, one quad behind the other.
template <typename C>
__device__ uint4* partials_of(const Streamed& args, int block) {
  return args.exchange + static_cast<std::int64_t>(block) * C::QUADS * kGroupThreads + threadIdx.x;
}
__device__ inline void leave_quad(uint4* to, const uint4& x) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(x.x), "r"(x.y), "r"(x.z),
               "r"(x.w)
               : "memory");
}
__device__ inline uint4 look_at_quad(const uint4* from) {
  uint4 x;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from)
               : "memory");
  return x;
}
__device__ inline bool there(const uint4& x) {
  return x.x != kNothing && x.y != kNothing && x.z != kNothing && x.w != kNothing;
}

/// Leaves a thread's sums for the block that has the tile's first runs, word by word: each is there as soon
/// as it is not kNothing, and needs no mark behind it.
template <typename C>
__device__ void leave_partials(const Streamed& args, const float (&sums)[C::SUMS]) {
  uint4* const to = partials_of<C>(args, static_cast<int>(blockIdx.x));
  const auto word = [&](int i) { return min(__float_as_uint(sums[i]), kNothing - 1); };
#pragma unroll
  for (int i = 0; i < C::QUADS; ++i) {
    leave_quad(to + i * kGroupThreads,
               make_uint4(word(4 * i), word(4 * i + 1), word(4 * i + 2), word(4 * i + 3)));
  }
}

/// Adds what the threads with this one's place have summed in `count` blocks from `first` on. What several
/// have left is asked for at once.
template <typename C>
__device__ void add_partials(const Streamed& args, int first, int count, float (&sums)[C::SUMS]) {
  constexpr int AT_ONCE = C::TOKENS <= 32 ? 3 : 2;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  for (int begin = 0; begin < count; begin += AT_ONCE) {
    uint4 more[AT_ONCE][C::QUADS];
    bool all = false;
    while (!all) {
      // Who waits looks at little, since others still need the memory: at the last quad of each.
      if (lane < min(AT_ONCE, count - begin)) {
        const uint4* const last = partials_of<C>(args, first + begin + lane) + (C::QUADS - 1) * kGroupThreads;
        while (!there(look_at_quad(last))) {
        }
      }
      __syncwarp();
      all = true;
#pragma unroll
      for (int k = 0; k < AT_ONCE; ++k) {
        if (begin + k >= count) continue;
        const uint4* const from = partials_of<C>(args, first + begin + k);
#pragma unroll
        for (int i = 0; i < C::QUADS; ++i) {
          more[k][i] = look_at_quad(from + i * kGroupThreads);
          all = all && there(more[k][i]);
        }
      }
      all = __all_sync(0xFFFFFFFFu, all);
    }
#pragma unroll
    for (int k = 0; k < AT_ONCE; ++k) {
      if (begin + k >= count) continue;
      uint4* const from = partials_of<C>(args, first + begin + k);
#pragma unroll
      for (int i = 0; i < C::QUADS; ++i) {
        leave_quad(from + i * kGroupThreads, make_uint4(kNothing, kNothing, kNothing, kNothing));
        sums[4 * i] += __uint_as_float(more[k][i].x);
        sums[4 * i + 1] += __uint_as_float(more[k][i].y);
        sums[4 * i + 2] += __uint_as_float(more[k][i].z);
        sums[4 * i + 3] += __uint_as_float(more[k][i].w);
      }
    }
  }
}

/// How many blocks behind this one have runs of a tile, of which this one has those up to `end`.
__device__ inline int blocks_behind(const Streamed& args, int end, int tile_end) {
  int count = 0;
  for (; end < tile_end; ++count) end = first_run(args, static_cast<int>(blockIdx.x) + count + 2);
  return count;
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
    if constexpr (C::FP8)
      each_token<C>(args, [&](int token, int i) { token_scales_[i] = args.a_scales[token]; });
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int output = first_ + 8 * half;
      if (output >= args.outputs) continue;
      if constexpr (C::FP8) scales_[half] = args.b_scales[output];
      bias_[half] = args.bias != nullptr ? args.bias[output] : 0.0f;
      if (args.in_order) bias_[half] = to_float(from_float<T>(bias_[half]));
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
        float sum = sums[i / 2 * 4 + half * 2 + i % 2];
        if constexpr (C::FP8) sum *= scales_[half] * token_scales_[i];
        sum += bias_[half];
        // Rounded before, as on a CPU: the bits of a sum made afterwards.
        if (!args_.adds_at_once) sum = to_float(from_float<T>(sum));
        if (args_.addend != nullptr) sum += to_float(addend_[half][i]);
        to[token * args_.d_ld] = from_float<T>(sum);
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

/// A tile whose first runs this block has, up to `end`.
template <typename C, typename T>
__device__ void make_tile(const Streamed& args, const Ring<C>& ring, Place<C>& place, int tile, int count,
                          int behind) {
  const Outputs<C, T> outputs(args, tile * kOutputs);
  float sums[C::SUMS];
  sum_runs<C>(ring, place, count, sums);
  add_partials<C>(args, static_cast<int>(blockIdx.x) + 1, behind, sums);
  outputs.write(sums);
}

template <typename C, typename T>
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
    const int next = min(end, tile_end), count = next - run;
    if (run % args.runs == 0) {
      make_tile<C, T>(args, ring, place, tile, count, blocks_behind(args, next, tile_end));
    } else {
      float sums[C::SUMS];
      sum_runs<C>(ring, place, count, sums);
      leave_partials<C>(args, sums);
    }
    run = next;
  }
}

template <typename C, typename T>
bool launch(Stream& stream, const GemmArgs& args, Streamed streamed) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  constexpr std::int64_t most = std::int64_t{1} << 30;
  const std::int64_t row_bytes = b.cols * static_cast<std::int64_t>(size_of(b.dtype));
  const std::int64_t runs = ceil_div(row_bytes, std::int64_t{kRowBytes} * C::WIDTH);
  const std::int64_t tiles = ceil_div(b.rows, kOutputs);
  if (runs * tiles >= most) return false;
  const std::int64_t blocks = std::min<std::int64_t>(octet::cuda::properties(stream.device()).multiprocessors,
                                                     streamed.in_order ? tiles : runs * tiles);
  if (blocks * kGroupThreads * C::SUMS > octet::cuda::kExchangeWords) return false;
  streamed.runs = static_cast<int>(runs);
  streamed.tiles = static_cast<int>(tiles);
  const CUtensorMap weight =
      tensor_map({.data = b.data, .rows = b.rows, .bytes = row_bytes, .tile_rows = kOutputs});
  const CUtensorMap tokens =
      tensor_map({.data = a.data, .rows = a.rows, .bytes = row_bytes, .tile_rows = C::TOKENS});
  octet::cuda::check(cudaFuncSetAttribute(streamed_kernel<C, T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(C::SHARED_BYTES)),
                     "cudaFuncSetAttribute");
  launch_early(streamed_kernel<C, T>, dim3(static_cast<unsigned>(blocks)), kThreads, C::SHARED_BYTES,
               octet::cuda::native(stream), "gemm", weight, tokens, streamed);
  return true;
}

template <typename C>
bool launch(Stream& stream, const GemmArgs& args, const Streamed& streamed) {
  return args.d.dtype == DType::f32 ? launch<C, float>(stream, args, streamed)
                                    : launch<C, __nv_bfloat16>(stream, args, streamed);
}

bool dense(std::int64_t ld, const Operand& operand) {
  return ld == 0 || ld == operand.cols;
}

/// Of either type, in any order; on Hopper only: code for other GPUs has no products of warpgroups.
bool may_stream(const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  return args.product == Product::forward && args.b_stands && !args.accumulate && a.dtype == b.dtype &&
         a.rows <= kStreamedTokens && b.rows > 0 && a.cols > 0 && on_boundary(a.data) &&
         on_boundary(b.data) && octet::cuda::code_here() == 90;
}

bool bf16_may_stream(const GemmArgs& args) {
  const Operand& a = args.a;
  return a.dtype == DType::bf16 && a.cols % 8 == 0 && dense(args.a_ld, a) && dense(args.b_ld, args.b) &&
         args.factor == 1.0f;
}

bool fits(const GemmArgs& args) {
  const Operand& a = args.a;
  const Operand& b = args.b;
  if (!may_stream(args)) return false;
  if (a.dtype == DType::e4m3) {
    return a.scaling == Scaling::whole_rows && b.scaling == Scaling::whole_rows &&
           a.rows > kTokensOfFullSums && a.cols % 16 == 0;
  }
  return bf16_may_stream(args) && a.rows > kTokensOfTheLibrary && a.rows <= kMostTokensInBf16 &&
         !args.fixed_order;
}

Streamed streamed_of(const GemmArgs& args) {
  return {.a_scales = args.a.scale_inv,
          .b_scales = args.b.scale_inv,
          .bias = args.bias,
          .d = args.d.data,
          .addend = args.addend.data,
          .d_ld = args.d.ld,
          .tokens = static_cast<int>(args.a.rows),
          .outputs = static_cast<int>(args.b.rows)};
}

}  // namespace

bool multiply_streamed_in_order(Stream& stream, const GemmArgs& args, Addition addition) {
  if (!may_stream(args) || !bf16_may_stream(args)) return false;
  Streamed streamed = streamed_of(args);
  streamed.in_order = true;
  streamed.adds_at_once = addition == Addition::at_once;
  if (args.a.rows <= 16) return launch<Cut<false, 16, 2, 4>>(stream, args, streamed);
  if (args.a.rows <= 32) return launch<Cut<false, 32, 2, 5>>(stream, args, streamed);
  return launch<Cut<false, 64, 1, 7>>(stream, args, streamed);
}

bool multiply_streamed(Stream& stream, const GemmArgs& args) {
  if (!fits(args)) return false;
  Streamed streamed = streamed_of(args);
  streamed.exchange = reinterpret_cast<uint4*>(octet::cuda::exchange(stream));
  if (args.a.dtype == DType::e4m3) {
    return args.a.rows <= 32 ? launch<Cut<true, 32, 2, 5>>(stream, args, streamed)
                             : launch<Cut<true, 64, 1, 7>>(stream, args, streamed);
  }
  return args.a.rows <= 16 ? launch<Cut<false, 16, 2, 4>>(stream, args, streamed)
                           : launch<Cut<false, 32, 2, 5>>(stream, args, streamed);
}

}  // namespace octet::ops::cuda
