// The kernel of the GEMMs of experts in training (expert_gemm.h), on Hopper. Two warpgroups multiply 64 rows
// of a tile each (expert_tiles.cuh).
#pragma once

#include <algorithm>

#include "cuda/experts/expert_tiles.cuh"
#include "cuda/tensor_map.h"
#include "cuda/warpgroup.cuh"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

/// Makes writes of threads to shared memory visible to the copy engine and the tensor cores.
__device__ inline void fence_shared_writes() {
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
/// Barrier of the threads of a warpgroup.
__device__ inline void meet_warpgroup(int group) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kGroupThreads) : "memory");
}

/// Returns a mask of bytes [from, to) of eight, in the order of memory. Both may be outside of 0 to 8.
__device__ inline std::uint64_t byte_mask(int from, int to) {
  const auto below = [](int end) {
    return end >= 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << 8 * max(end, 0)) - 1;
  };
  return below(to) & ~below(from);
}

/// Clears all values of the inner dimension except [first, end) in the warpgroup's rows of a of a run of
/// wgrad: these values belong to other experts. Values of b stay, so that NaN or infinity in the rows of a
/// neighbour spreads. The rows after the last expert have any values, so b is cleared too with `clears_b`, by
/// both warpgroups: neither depends on the progress of the other. first < 16, and 0 in bf16.
template <typename F>
__device__ inline void clear_others(const Ring<F>& ring, int group, int first, int end, bool clears_b) {
  const int thread = static_cast<int>(threadIdx.x) % kGroupThreads;
  const int boxes = clears_b ? 1 + Sizes<F>::BOXES_OF_B : 1;
  const auto box_at = [&](int i) {
    return i == 0 ? ring.a() + group * kBoxBytes : ring.b() + (i - 1) * kBoxBytes;
  };
  if constexpr (F::FP8) {
    // In each row, the first 16-byte piece and all pieces from the end on. The pieces of a row are swizzled.
    const int last = end / 16, from_piece = first > 0 ? 0 : last;
    const int pieces = 8 - last + (first > 0 && last > 0 ? 1 : 0);
    for (int i = thread; i < boxes * kBox * pieces; i += kGroupThreads) {
      const int row = i % kBox, box = i / kBox % boxes, nth = i / (kBox * boxes);
      const int piece = nth == 0 ? from_piece : last + nth - (from_piece < last ? 1 : 0);
      const int from = first - piece * 16, to = end - piece * 16;
      auto* const at = reinterpret_cast<ulonglong2*>(box_at(box) + row * kRunBytes + (piece ^ row % 8) * 16);
      ulonglong2 values = *at;
      values.x &= byte_mask(from, to);
      values.y &= byte_mask(from - 8, to - 8);
      *at = values;
    }
  } else {
    const int pieces = (F::RUN - end) * 8;  // pieces of 16 bytes in a box
    for (int box = 0; box < boxes; ++box) {
      for (int i = thread; i < pieces; i += kGroupThreads)
        reinterpret_cast<uint4*>(box_at(box) + end * kRunBytes)[i] = uint4{0, 0, 0, 0};
    }
  }
  fence_shared_writes();
  meet_warpgroup(group);
}

/// Starts the products of a run. PROMOTED: sums = products, otherwise sums += products.
template <GemmKind P, typename F>
__device__ void begin_run(const Ring<F>& ring, int group, float (&sums)[Sizes<F>::SUMS]) {
  const std::uint8_t *const a = ring.a() + group * kBoxBytes, *const b = ring.b();
  begin_multiplies();
  if constexpr (F::FP8) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::uint64_t a_at = warpgroup_operand(a + step * 32), b_at = warpgroup_operand(b + step * 32);
      multiply_fp8<F::A_E5M2>(sums, a_at, b_at, !F::PROMOTED || step > 0);
    }
  } else {
    constexpr bool a_transposed = P == GemmKind::wgrad, b_transposed = P != GemmKind::forward;
    // A step is 16 values of the inner dimension: 32 bytes of a row, or 16 rows of a transposed operand.
    constexpr int a_step = a_transposed ? 16 * 128 : 32, b_step = b_transposed ? 16 * 128 : 32;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const std::uint8_t *const a_at = a + step * a_step, *const b_at = b + step * b_step;
      wide_multiply<a_transposed, b_transposed>(
          sums, a_transposed ? transposed_operand(a_at, kBoxBytes) : warpgroup_operand(a_at),
          b_transposed ? transposed_operand(b_at, kBoxBytes) : warpgroup_operand(b_at));
    }
  }
  end_multiplies();
}

/// Marks the stage as free for both blocks, for this warp. Done by one thread of each warp.
template <typename F>
__device__ void leave(const Ring<F>& ring, int stage) {
  if (threadIdx.x % kWarp == 0) {
    for (int block = 0; block < kBlocks; ++block) arrive_in_block(ring.emptied[stage], block);
  }
}

/// Waits for the next run of the tile, starts its products, and returns its stage. CLEARS: the run may
/// contain values of other experts.
template <GemmKind P, typename F, bool CLEARS>
__device__ int next_run(const Work& w, const Tile& tile, int group, int run, Ring<F>& ring,
                        float (&sums)[Sizes<F>::SUMS]) {
  wait_for_phase(ring.filled[ring.stage], ring.phase);
  if constexpr (CLEARS) {
    const InnerRows rows = inner_rows<F>(w, tile.expert);
    const int first = run == 0 ? rows.before : 0, end = min(rows.end - rows.start - run * F::RUN, F::RUN);
    const bool last = tile.expert + 1 == w.experts.count;
    if (first > 0 || end < F::RUN) clear_others(ring, group, first, end, last);
  }
  begin_run<P, F>(ring, group, sums);
  const int stage = ring.stage;
  ring.advance();
  return stage;
}

/// Reads the runs of a tile without products.
template <typename F>
__device__ void skip_runs(int runs, Ring<F>& ring) {
#pragma unroll 1
  for (int run = 0; run < runs; ++run) {
    wait_for_phase(ring.filled[ring.stage], ring.phase);
    leave(ring, ring.stage);
    ring.advance();
  }
}

template <GemmKind P, typename F>
__device__ void sum_runs(const Work& w, const Tile& tile, int group, Ring<F>& ring,
                         float (&sums)[Sizes<F>::SUMS]) {
  const int runs = runs_of<P, F>(w, tile);
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  int before = 0;
#pragma unroll 1
  for (int run = 0; run < runs; ++run) {
    const int stage = next_run<P, F, P == GemmKind::wgrad>(w, tile, group, run, ring, sums);
    if (run > 0) {
      wait_for_multiplies<1>();
      leave(ring, before);
    }
    before = stage;
  }
  wait_for_multiplies<0>();
  take_sums(sums);
  if (runs > 0) leave(ring, before);
}

/// Ends the products of a run while at most `LEFT` later runs are in flight, and adds them in fp32.
template <int LEFT, typename F>
__device__ void add_run(const Ring<F>& ring, int stage, float (&gemms)[Sizes<F>::SUMS],
                        float (&sums)[Sizes<F>::SUMS]) {
  wait_for_multiplies<LEFT>();
  take_sums(gemms);
  leave(ring, stage);
#pragma unroll
  for (int i = 0; i < Sizes<F>::SUMS; ++i) sums[i] += gemms[i];
}

/// Like sum_runs(), but adds the products of each run in fp32. Two runs are in flight, except runs of wgrad
/// with values of other experts: the branch would make the compiler wait for all products.
template <GemmKind P, typename F>
__device__ void sum_promoted_runs(const Work& w, const Tile& tile, int group, Ring<F>& ring,
                                  float (&sums)[Sizes<F>::SUMS]) {
  constexpr bool wgrad = P == GemmKind::wgrad;
  const int runs = runs_of<P, F>(w, tile);
#pragma unroll
  for (float& sum : sums) sum = 0.0f;
  float even[Sizes<F>::SUMS], odd[Sizes<F>::SUMS];
  const auto add_alone = [&](int run) {
    const int stage = next_run<P, F, wgrad>(w, tile, group, run, ring, even);
    add_run<0>(ring, stage, even, sums);
  };
  int run = 0;
  if (wgrad && runs > 0 && inner_rows<F>(w, tile.expert).before > 0) add_alone(run++);
  const int paired = wgrad ? runs - 1 : runs;
  if (run < paired) {
    int even_stage = next_run<P, F, false>(w, tile, group, run++, ring, even), odd_stage = 0;
#pragma unroll 1
    for (; run + 1 < paired; run += 2) {
      odd_stage = next_run<P, F, false>(w, tile, group, run, ring, odd);
      add_run<1>(ring, even_stage, even, sums);
      even_stage = next_run<P, F, false>(w, tile, group, run + 1, ring, even);
      add_run<1>(ring, odd_stage, odd, sums);
    }
    if (run < paired) {
      odd_stage = next_run<P, F, false>(w, tile, group, run++, ring, odd);
      add_run<1>(ring, even_stage, even, sums);
      add_run<0>(ring, odd_stage, odd, sums);
    } else {
      add_run<0>(ring, even_stage, even, sums);
    }
  }
  if (wgrad && run < runs) add_alone(run);
}

/// Buffer in which a warp collects 128 bytes of each of its output rows, so that it writes whole cache lines.
template <typename T>
struct Staging {
  static constexpr int COLUMNS = 128 / static_cast<int>(sizeof(T));
  static constexpr int PER_LANE = 16 / static_cast<int>(sizeof(T));
  static constexpr int LANES = COLUMNS / PER_LANE;  ///< lanes that write a row
  static constexpr int PITCH = 128 + 16;  ///< bytes: lanes that write at the same time use different banks
  static constexpr int BYTES = kWarpRows * PITCH;
  std::uint8_t* data;
  __device__ T* at(int r, int column) const { return reinterpret_cast<T*>(data + r * PITCH) + column; }
};
constexpr std::size_t kStagedBytes = std::size_t{kGroups} * (kGroupThreads / kWarp) * Staging<float>::BYTES;
constexpr std::size_t kSharedBytes = std::size_t{kRingBytes} + kStagedBytes + 1024;

__device__ inline void put_two(__nv_bfloat16* to, float first, float second) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(first, second);
}
__device__ inline void put_two(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = float2{first, second};
}

/// Adds 16 bytes of outputs element by element.
__device__ inline uint4 added(const uint4& a, const uint4& b, float) {
  const auto sum = [](unsigned x, unsigned y) {
    return __float_as_uint(__uint_as_float(x) + __uint_as_float(y));
  };
  return {sum(a.x, b.x), sum(a.y, b.y), sum(a.z, b.z), sum(a.w, b.w)};
}
__device__ inline uint4 added(const uint4& a, const uint4& b, __nv_bfloat16) {
  const auto sum = [](unsigned x, unsigned y) {
    return packed(narrow<__nv_bfloat16>(low_half(x) + low_half(y)),
                  narrow<__nv_bfloat16>(high_half(x) + high_half(y)));
  };
  return {sum(a.x, b.x), sum(a.y, b.y), sum(a.z, b.z), sum(a.w, b.w)};
}

/// Returns the factor of the sums of an expert.
template <GemmKind P>
__device__ float factor_of(const Work& w, int expert) {
  const float a = w.a_scale == nullptr ? 1.0f : *w.a_scale;
  const std::int64_t at = P == GemmKind::wgrad ? 0 : expert * w.b_scale_step;
  return w.b_scale == nullptr ? a : a * w.b_scale[at];
}

template <GemmKind P, typename F, typename T>
__device__ void write_tile(const Work& w, const Tile& tile, int group, const float (&sums)[Sizes<F>::SUMS],
                           std::uint8_t* staged) {
  using Rows = Staging<T>;
  const float factor = F::FP8 ? factor_of<P>(w, tile.expert) : 1.0f;
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const Rows staging{staged + (group * kGroupThreads / kWarp + warp) * Rows::BYTES};
  const std::int64_t above = P == GemmKind::wgrad ? static_cast<std::int64_t>(tile.expert) * w.rows : 0;
  const int first = group * kGroupRows + warp * kWarpRows;  // relative to the tile
  T* const to = static_cast<T*>(w.d) + (above + tile.first_row + first) * w.d_ld + tile.column;
#pragma unroll
  for (int begin = 0; begin < F::COLUMNS; begin += Rows::COLUMNS) {
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < Rows::COLUMNS / 8; ++i) {
        const int at = 4 * (begin / 8 + i) + 2 * half;
        T* const to_staging = staging.at(lane / 4 + 8 * half, 8 * i + lane % 4 * 2);
        F::FP8 ? put_two(to_staging, factor * sums[at], factor * sums[at + 1])
               : put_two(to_staging, sums[at], sums[at + 1]);
      }
    }
    __syncwarp();
    const int column = lane % Rows::LANES * Rows::PER_LANE;
    if (tile.column + begin + column >= w.columns) continue;
#pragma unroll
    for (int r = lane / Rows::LANES; r < kWarpRows; r += kWarp / Rows::LANES) {
      if (first + r >= tile.rows) break;
      auto* const line = reinterpret_cast<uint4*>(to + r * w.d_ld + begin + column);
      uint4 values = *reinterpret_cast<const uint4*>(staging.at(r, column));
      if (P == GemmKind::wgrad && w.adds) values = added(*line, values, T{});
      *line = values;
    }
  }
}

/// Sets the number of registers of each thread. Called by all threads of a warpgroup.
template <int COUNT, bool MORE>
__device__ inline void set_registers() {
#ifdef OCTET_HAS_WARPGROUPS
  if constexpr (MORE) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
  }
#endif
}

template <GemmKind P, typename F, typename T, Placing PLACING>
__global__ void __launch_bounds__(kThreads, 1)
    expert_gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const Work w) {
  constexpr int stages = Sizes<F>::STAGES;
  __shared__ Barrier filled[stages], emptied[stages];
  __shared__ Groups<kGroupedRows<PLACING>> groups;
  // The swizzle uses address bits, so the ring must be aligned to 1024 bytes.
  std::uint8_t* const shared = dynamic_shared();
  Ring<F> ring{
      .data = shared + (1024 - shared_address(shared) % 1024) % 1024, .filled = filled, .emptied = emptied};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < stages; ++stage) {
      make_barrier(filled[stage], 1);
      make_barrier(emptied[stage], kBlocks * kGroups * kGroupThreads / kWarp);
    }
    open_barriers();
  }
  if constexpr (P != GemmKind::wgrad) groups.find(w.experts);
  meet_cluster();
  // Uniform over a warp; the shuffle lets the compiler assume this.
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kGroups) {
    set_registers<kFewRegisters, false>();
    if (threadIdx.x == kGroups * kGroupThreads) fill<P, F, PLACING>(w, groups, a, b, ring);
    return;
  }
  set_registers<kManyRegisters, true>();
  std::uint8_t* const staged = ring.data + kRingBytes;
  each_tile<P, F, PLACING>(w, groups, [&](const Tile& tile) {
    // A warpgroup without rows has nothing to write.
    if (group * kGroupRows >= tile.rows) return skip_runs(runs_of<P, F>(w, tile), ring);
    float sums[Sizes<F>::SUMS];
    if constexpr (F::PROMOTED) {
      sum_promoted_runs<P, F>(w, tile, group, ring, sums);
    } else {
      sum_runs<P, F>(w, tile, group, ring, sums);
    }
    write_tile<P, F, T>(w, tile, group, sums, staged);
  });
  // Keep the shared memory alive while the other block writes to it.
  meet_cluster();
}

/// Operands of a kernel: row-major matrices as the kernel reads them.
struct ExpertOperands {
  ConstMatrix a, b;
  std::int64_t weight_rows = 0;  ///< rows of b per expert, of forward and dgrad
};

template <GemmKind P, typename F, typename T, Placing PLACING>
void launch_placed(Stream& stream, const ExpertGemmArgs& args, const ExpertOperands& operands) {
  const auto boxes = [](const ConstMatrix& m) {
    return tensor_map({.data = m.data,
                       .rows = m.rows,
                       .bytes = m.ld * static_cast<std::int64_t>(size_of(m.dtype)),
                       .tile_rows = kBox});
  };
  const bool wgrad = P == GemmKind::wgrad;
  const Work work{.experts = {.begins = args.begins, .count = static_cast<int>(args.count)},
                  .rows = static_cast<int>(args.d.rows / args.count),
                  .columns = static_cast<int>(args.d.cols),
                  .inner = static_cast<int>(args.a.cols),
                  .weight_rows = static_cast<int>(operands.weight_rows),
                  .d = args.d.data,
                  .d_ld = args.d.ld,
                  .adds = args.accumulate,
                  .a_scale = args.a.scale_inv,
                  .b_scale = args.b.scale_inv,
                  .b_scale_step = args.weight_scale_step};
  const auto kernel = expert_gemm_kernel<P, F, T, PLACING>;
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kSharedBytes)),
                     "cudaFuncSetAttribute");
  constexpr std::int64_t rows = kGroupedRows<PLACING>, columns = F::COLUMNS * kClusterRows / rows;
  const std::int64_t across = ceil_div(args.d.cols, columns);
  const std::int64_t down = wgrad ? args.count * ceil_div(work.rows, kClusterRows)
                                  : std::min(args.d.rows, args.count + args.d.rows / rows);
  const std::int64_t places = octet::cuda::properties(stream.device()).multiprocessors / kBlocks;
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim.x = kBlocks, cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(kBlocks * std::min(places, across * down)));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kSharedBytes;
  config.stream = octet::cuda::native(stream);
  config.attrs = &cluster;
  config.numAttrs = 1;
  octet::cuda::check(cudaLaunchKernelEx(&config, kernel, boxes(operands.a), boxes(operands.b), work),
                     "expert_gemm");
}

/// Two tiles side by side fit the rows of experts better: at most 127 rows of an expert's last tile are
/// empty, not 255. They need an even number of tiles across.
template <GemmKind P, typename F, typename T>
void launch_expert_gemm(Stream& stream, const ExpertGemmArgs& args, const ExpertOperands& operands) {
  if constexpr (P != GemmKind::wgrad) {
    if (ceil_div(args.d.cols, F::COLUMNS) % kBlocks == 0)
      return launch_placed<P, F, T, Placing::side_by_side>(stream, args, operands);
  }
  launch_placed<P, F, T, Placing::stacked>(stream, args, operands);
}

}  // namespace octet::ops::cuda
