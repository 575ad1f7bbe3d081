// The GEMMs of experts in training (expert_gemm.h), on Hopper in bf16. A block computes tiles of 128 by 256
// in sequence. One thread starts copies of runs of 64 values of the inner dimension, as many ahead as the
// ring holds. It also loads the next tile while the current tile is written. Two warpgroups multiply 64 rows
// each. Two blocks form a cluster.
#include "octet/ops/expert_gemm.h"

#include <algorithm>

#include "cuda/bulk_copies.cuh"
#include "cuda/grouped_gemm.cuh"
#include "cuda/tensor_map.h"
#include "cuda/warpgroup_wide.cuh"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

bool has_expert_gemm(const ExpertGemmArgs& args);
void expert_gemm(Stream& stream, const ExpertGemmArgs& args);

namespace {

constexpr int kRun = 64;  ///< values of the inner dimension per copy
constexpr int kBox = 64;  ///< rows of a copy-engine box, of 128 bytes each
constexpr int kBoxBytes = kBox * 128;
constexpr int kGroups = 2, kGroupRows = 64, kGroupThreads = 128;
constexpr int kRows = kGroups * kGroupRows, kColumns = 256;
/// Blocks of a cluster. Their tiles have the same columns and neighbouring rows. So each block loads a part
/// of b for both.
constexpr int kBlocks = 2, kClusterRows = kBlocks * kRows;
constexpr int kBoxesOfB = kColumns / kBox;
constexpr int kStageBytes = (kGroups + kBoxesOfB) * kBoxBytes;
constexpr int kStages = 4;
/// Registers are assigned per warpgroup. The warpgroup of the copying thread leaves most registers to the
/// others.
constexpr int kThreads = (kGroups + 1) * kGroupThreads;
constexpr int kFewRegisters = 40, kManyRegisters = 232;
constexpr int kWarpRows = kGroupRows * kWarp / kGroupThreads;  ///< rows of a warp
constexpr int kSteps = 4;                                      ///< product instructions per run
constexpr int kSums = kColumns / 2;                            ///< sums of a thread

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
constexpr std::size_t kSharedBytes = std::size_t{kStages} * kStageBytes + kStagedBytes + 1024;

/// ExpertGemmArgs for the kernel.
struct Work {
  Grouped experts;  ///< only `begins` and `count` are used
  int rows;         ///< wgrad only: rows of the matrix of an expert
  int columns;      ///< columns of d
  int inner;        ///< forward and dgrad: the inner dimension
  int weight_rows;  ///< weight rows of an expert
  void* d;
  std::int64_t d_ld;
  bool adds;
};

/// A tile: rows [first_row, first_row + rows) of a, or of the matrix of an expert, and columns from `column`
/// on.
struct Tile {
  int expert, first_row, rows, column;
};

struct Ring {
  std::uint8_t* data;
  Barrier* filled;
  Barrier* emptied;
  int stage = 0, phase = 0;
  __device__ std::uint8_t* a() const { return data + stage * kStageBytes; }
  __device__ std::uint8_t* b() const { return a() + kGroups * kBoxBytes; }
  __device__ void advance() {
    if (++stage < kStages) return;
    stage = 0;
    phase ^= 1;
  }
};

template <Product P>
__device__ int runs_of(const Work& w, const Tile& tile) {
  if constexpr (P == Product::wgrad) {
    return (w.experts.begins[tile.expert + 1] - w.experts.begins[tile.expert] + kRun - 1) / kRun;
  } else {
    return (w.inner + kRun - 1) / kRun;
  }
}

/// Returns the index of this block in its cluster.
__device__ inline int block_of_cluster() {
  return static_cast<int>(blockIdx.x) % kBlocks;
}

/// Calls act(tile) for the tiles of this block, in order. Both blocks of a cluster have the same number of
/// tiles, and some tiles may have no rows.
template <Product P, typename Act>
__device__ void each_tile(const Work& w, const Groups<kClusterRows>& groups, Act&& act) {
  const int across = (w.columns + kColumns - 1) / kColumns;
  const int begin = static_cast<int>(blockIdx.x) / kBlocks, step = static_cast<int>(gridDim.x) / kBlocks;
  const int own = block_of_cluster() * kRows;
  const auto rows_of = [&](int all) { return max(0, min(kRows, all - own)); };
  if constexpr (P == Product::wgrad) {
    const int down = (w.rows + kClusterRows - 1) / kClusterRows;
    for (int i = begin; i < w.experts.count * down * across; i += step) {
      const int at = i % (down * across), first = at / across * kClusterRows;
      act(Tile{i / (down * across), first + own, rows_of(w.rows - first), at % across * kColumns});
    }
  } else {
    for (int i = begin; i < groups.count(w.experts) * across; i += step) {
      const Item item = groups.item(w.experts, across, i);
      act(Tile{item.expert, item.first_row + own, rows_of(item.rows), item.tile * kColumns});
    }
  }
}

/// Like copy_tile(), but writes the tile to the same address in all blocks of the cluster. The barrier of
/// each block counts its bytes.
__device__ inline void copy_tile_to_cluster(void* to, const CUtensorMap& map, int row, int column,
                                            Barrier& barrier) {
#if __CUDA_ARCH__ >= 900
  constexpr std::uint16_t all_blocks = (1 << kBlocks) - 1;
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::"
      "cache_hint [%0], "
      "[%1, {%3, %4}], [%2], %5, %6;" ::"r"(shared_address(to)),
      "l"(&map), "r"(shared_address(&barrier)), "r"(column), "r"(row), "h"(all_blocks),
      "l"(static_cast<std::uint64_t>(Reread::often))
      : "memory");
#else
  __trap();
#endif
}
/// Arrives at the barrier with this address in a block of the cluster.
__device__ inline void arrive_in_block(Barrier& barrier, int block) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "{.reg .b32 there; mapa.shared::cluster.u32 there, %0, %1; "
      "mbarrier.arrive.shared::cluster.b64 _, "
      "[there];}" ::"r"(shared_address(&barrier)),
      "r"(block)
      : "memory");
#endif
}
/// Waits for all running threads of the cluster.
__device__ inline void meet_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/// Loads all runs of the block. Called by one thread. Boxes may include rows of the next expert.
template <Product P>
__device__ void fill(const Work& w, const Groups<kClusterRows>& groups, const CUtensorMap& a,
                     const CUtensorMap& b, Ring ring) {
  each_tile<P>(w, groups, [&](const Tile& tile) {
    const int runs = runs_of<P>(w, tile), weight = tile.expert * w.weight_rows;
    for (int run = 0; run < runs; ++run) {
      wait_for_phase(ring.emptied[ring.stage], ring.phase ^ 1);
      Barrier& filled = ring.filled[ring.stage];
      arrive_for_bytes(filled, kStageBytes);
      const int inner = run * kRun, row = P == Product::wgrad ? w.experts.begins[tile.expert] + inner : 0;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const int first = tile.first_row + g * kBox;
        copy_tile(ring.a() + g * kBoxBytes, a, P == Product::wgrad ? row : first,
                  2 * (P == Product::wgrad ? first : inner), filled, Reread::often);
      }
#pragma unroll
      for (int part = 0; part < kBoxesOfB / kBlocks; ++part) {
        const int c = block_of_cluster() * (kBoxesOfB / kBlocks) + part, column = tile.column + c * kBox;
        const int from =
            P == Product::forward ? weight + column : (P == Product::dgrad ? weight + inner : row);
        copy_tile_to_cluster(ring.b() + c * kBoxBytes, b, from, 2 * (P == Product::forward ? inner : column),
                             filled);
      }
      ring.advance();
    }
  });
}

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

/// Clears rows [kept, kRun) of the warpgroup's part of a run of wgrad. These rows belong to the next expert
/// and may hold any values. Both warpgroups clear b, so that neither depends on the progress of the other.
__device__ inline void clear_rows(const Ring& ring, int group, int kept) {
  const int pieces = (kRun - kept) * 8;  // pieces of 16 bytes in a box
  const auto clear = [&](std::uint8_t* box) {
    for (int i = static_cast<int>(threadIdx.x) % kGroupThreads; i < pieces; i += kGroupThreads)
      reinterpret_cast<uint4*>(box + kept * 128)[i] = uint4{0, 0, 0, 0};
  };
  clear(ring.a() + group * kBoxBytes);
  for (int c = 0; c < kBoxesOfB; ++c) clear(ring.b() + c * kBoxBytes);
  fence_shared_writes();
  meet_warpgroup(group);
}

template <Product P>
__device__ void begin_run(const Ring& ring, int group, float (&sums)[kSums]) {
  constexpr bool a_turned = P == Product::wgrad, b_turned = P != Product::forward;
  // A step is 16 values of the inner dimension: 32 bytes of a row, or 16 rows of a transposed operand.
  constexpr int a_step = a_turned ? 16 * 128 : 32, b_step = b_turned ? 16 * 128 : 32;
  const std::uint8_t *const a = ring.a() + group * kBoxBytes, *const b = ring.b();
  begin_products();
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const std::uint8_t *const a_at = a + step * a_step, *const b_at = b + step * b_step;
    wide_multiply<a_turned, b_turned>(sums,
                                      a_turned ? turned_operand(a_at, kBoxBytes) : warpgroup_operand(a_at),
                                      b_turned ? turned_operand(b_at, kBoxBytes) : warpgroup_operand(b_at));
  }
  end_products();
}

/// Marks the stage as free for both blocks, for this warp. Done by one thread of each warp.
__device__ void leave(const Ring& ring, int stage) {
  if (threadIdx.x % kWarp == 0) {
    for (int block = 0; block < kBlocks; ++block) arrive_in_block(ring.emptied[stage], block);
  }
}

template <Product P>
__device__ void sum_runs(const Work& w, const Tile& tile, int group, Ring& ring, float (&sums)[kSums]) {
  const int runs = runs_of<P>(w, tile);
#pragma unroll
  for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
  int before = 0;
#pragma unroll 1
  for (int run = 0; run < runs; ++run) {
    wait_for_phase(ring.filled[ring.stage], ring.phase);
    if constexpr (P == Product::wgrad) {
      const int kept = w.experts.begins[tile.expert + 1] - w.experts.begins[tile.expert] - run * kRun;
      if (kept < kRun) clear_rows(ring, group, kept);
    }
    begin_run<P>(ring, group, sums);
    if (run > 0) {
      wait_for_products<1>();
      leave(ring, before);
    }
    before = ring.stage;
    ring.advance();
  }
  wait_for_products<0>();
  take_sums(sums);
  if (runs > 0) leave(ring, before);
}

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

template <Product P, typename T>
__device__ void write_tile(const Work& w, const Tile& tile, int group, const float (&sums)[kSums],
                           std::uint8_t* staged) {
  using Rows = Staging<T>;
  const int warp = static_cast<int>(threadIdx.x) % kGroupThreads / kWarp,
            lane = static_cast<int>(threadIdx.x) % kWarp;
  const Rows staging{staged + (group * kGroupThreads / kWarp + warp) * Rows::BYTES};
  const std::int64_t above = P == Product::wgrad ? static_cast<std::int64_t>(tile.expert) * w.rows : 0;
  const int first = group * kGroupRows + warp * kWarpRows;  // relative to the tile
  T* const to = static_cast<T*>(w.d) + (above + tile.first_row + first) * w.d_ld + tile.column;
#pragma unroll
  for (int begin = 0; begin < kColumns; begin += Rows::COLUMNS) {
    __syncwarp();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int i = 0; i < Rows::COLUMNS / 8; ++i) {
        const int at = 4 * (begin / 8 + i) + 2 * half;
        put_two(staging.at(lane / 4 + 8 * half, 8 * i + lane % 4 * 2), sums[at], sums[at + 1]);
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
      if (P == Product::wgrad && w.adds) values = added(*line, values, T{});
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

template <Product P, typename T>
__global__ void __launch_bounds__(kThreads, 1)
    expert_gemm_kernel(const __grid_constant__ CUtensorMap a, const __grid_constant__ CUtensorMap b,
                       const Work w) {
  __shared__ Barrier filled[kStages], emptied[kStages];
  __shared__ Groups<kClusterRows> groups;
  // The swizzle uses address bits, so the ring must be aligned to 1024 bytes.
  std::uint8_t* const shared = dynamic_shared();
  Ring ring{
      .data = shared + (1024 - shared_address(shared) % 1024) % 1024, .filled = filled, .emptied = emptied};
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      make_barrier(filled[stage], 1);
      make_barrier(emptied[stage], kBlocks * kGroups * kGroupThreads / kWarp);
    }
    open_barriers();
  }
  if constexpr (P != Product::wgrad) groups.find(w.experts);
  meet_cluster();
  // Uniform over a warp; the shuffle lets the compiler assume this.
  const int group = __shfl_sync(0xFFFFFFFFu, static_cast<int>(threadIdx.x) / kGroupThreads, 0);
  if (group == kGroups) {
    set_registers<kFewRegisters, false>();
    if (threadIdx.x == kGroups * kGroupThreads) fill<P>(w, groups, a, b, ring);
    return;
  }
  set_registers<kManyRegisters, true>();
  std::uint8_t* const staged = ring.data + kStages * kStageBytes;
  each_tile<P>(w, groups, [&](const Tile& tile) {
    float sums[kSums];
    sum_runs<P>(w, tile, group, ring, sums);
    write_tile<P, T>(w, tile, group, sums, staged);
  });
  // Keep the shared memory alive while the other block writes to it.
  meet_cluster();
}

CUtensorMap boxes_of(const ConstMatrix& m) {
  return tensor_map({.data = m.data, .rows = m.rows, .bytes = m.ld * 2, .tile_rows = kBox});
}

template <Product P, typename T>
void launch(Stream& stream, const ExpertGemmArgs& args) {
  const std::int64_t weight_rows = args.b.rows / args.count;
  const bool wgrad = P == Product::wgrad;
  const Work work{.experts = {.begins = args.begins, .count = static_cast<int>(args.count)},
                  .rows = static_cast<int>(args.d.rows / args.count),
                  .columns = static_cast<int>(args.d.cols),
                  .inner = static_cast<int>(args.a.cols),
                  .weight_rows = static_cast<int>(weight_rows),
                  .d = args.d.data,
                  .d_ld = args.d.ld,
                  .adds = args.accumulate};
  const auto kernel = expert_gemm_kernel<P, T>;
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kSharedBytes)),
                     "cudaFuncSetAttribute");
  const std::int64_t across = ceil_div(args.d.cols, kColumns);
  const std::int64_t down = wgrad ? args.count * ceil_div(work.rows, kClusterRows)
                                  : std::min(args.d.rows, args.count + args.d.rows / kClusterRows);
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
  octet::cuda::check(cudaLaunchKernelEx(&config, kernel, boxes_of(args.a), boxes_of(args.b), work),
                     "expert_gemm");
}

bool can_be_copied(const ConstMatrix& m) {
  return m.dtype == DType::bf16 && m.ld == m.cols && m.cols % kRun == 0 &&
         reinterpret_cast<std::uintptr_t>(m.data) % 16 == 0 && m.rows < (std::int64_t{1} << 31) &&
         m.cols < (std::int64_t{1} << 29);
}

}  // namespace

bool has_expert_gemm(const ExpertGemmArgs& a) {
  const bool wgrad = a.product == Product::wgrad;
  // The inner dimension of dgrad must end with a run, because the next expert begins after it.
  return octet::cuda::code_here() == 90 && a.count <= kMostExperts && can_be_copied(a.a) &&
         can_be_copied(a.b) && a.d.ld % 8 == 0 && a.d.cols % 8 == 0 &&
         reinterpret_cast<std::uintptr_t>(a.d.data) % 16 == 0 &&
         (a.d.dtype == DType::bf16 || (wgrad && a.d.dtype == DType::f32));
}

void expert_gemm(Stream& stream, const ExpertGemmArgs& a) {
  check(has_expert_gemm(a), "expert_gemm: has_expert_gemm() was asked");
  switch (a.product) {
    case Product::forward:
      return launch<Product::forward, __nv_bfloat16>(stream, a);
    case Product::dgrad:
      return launch<Product::dgrad, __nv_bfloat16>(stream, a);
    case Product::wgrad:
      a.d.dtype == DType::f32 ? launch<Product::wgrad, float>(stream, a)
                              : launch<Product::wgrad, __nv_bfloat16>(stream, a);
  }
}

}  // namespace octet::ops::cuda
