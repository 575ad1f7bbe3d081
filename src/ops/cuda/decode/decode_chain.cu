// A chain of GEMMs of one token as one kernel (decode_gemm.h), with one block per multiprocessor. The tiles
// of a GEMM are cut into runs of the inner dimension. The runs of all tiles are numbered tile by tile and
// split evenly among the blocks ("Stream-K", Osama et al., arXiv:2301.03598). One thread of a block loads the
// weights of all GEMMs in order, as far ahead as a ring buffer in shared memory permits. It waits only for
// free space. The other threads multiply. Between two GEMMs they wait for the token, which all blocks compute
// together. Meanwhile the ring fills.
//
// Blocks exchange values word by word in memory. A word with all bits set is empty. So no fence, no flag and
// no grid barrier is needed. The reader of a partial sum resets it. Words of a token are reset when the token
// of the next GEMM is complete, because then all blocks have read them. Words of the last token of a chain
// are reset by the next chain, which uses another buffer for its own last token.
#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>

#include "cuda/decode/decode_chain_outputs.cuh"
#include "cuda/tensor_map.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms);
void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms);

namespace {

using namespace chain;

/// Shared memory of a block, excluding its static variables.
constexpr std::int64_t kMostShared = 216 * 1024;
constexpr std::int64_t kFewestStages = 8;
/// Padding after a token for the unused columns of the last products (token_operand()).
constexpr std::int64_t kGap = 128;
/// Number of runs before the end of a tile at which the sums of other blocks are first polled.
constexpr int kEarly = 2;

/// Multiplies the runs of this block in one GEMM. Called by all workers.
__device__ void multiply_tiles(const Chain& chain, const Gemm& g, unsigned* words, Gemms& gemms, Kept& kept,
                               int& turn) {
  const int end = first_run(g, static_cast<int>(blockIdx.x) + 1);
  const int group = static_cast<int>(threadIdx.x) / kGroupThreads, slot = Outputs::slot();
  for (int run = first_run(g, static_cast<int>(blockIdx.x)), next; run < end; run = next) {
    const int tile = run / g.runs, tile_end = (tile + 1) * g.runs, first = run - tile * g.runs;
    next = min(end, tile_end);
    const bool writes = group == 0 && first == 0;
    const Outputs outputs(g, tile, writes);
    const int before = max(next - run - kEarly, 0);
    Sums sums = {};
    Partials early;
    gemms.add_runs(first, before, sums);
    if (writes && next < tile_end && Outputs::has_sums())
      early.look(Partials::of(chain, static_cast<int>(blockIdx.x) + 1));
    gemms.add_runs(first + before, next - run - before, sums);
    if (group > 0 && Outputs::has_sums()) {
      kept.sums[turn][group - 1][slot] = sums[0];
      kept.sums[turn][group - 1][slot + 8] = sums[1];
    }
    // Two buffers alternate: threads that arrive here have read the buffer of the previous turn.
    meet_workers();
    if (group == 0) {
#pragma unroll
      for (int other = 0; other < kGroups - 1; ++other) {
        sums[0] += kept.sums[turn][other][slot];
        sums[1] += kept.sums[turn][other][slot + 8];
      }
      if (writes) {
        add_partials(chain, g, next, tile_end, early, sums);
        outputs.write(sums, kept.token_scale, words);
      } else {
        leave_partials(chain, sums);
      }
    }
    turn ^= 1;
  }
}

/// Resets words that are no longer needed, while GEMM `i` is multiplied.
__device__ void forget_tokens(const Chain& chain, int i, unsigned* of_chain_before) {
  constexpr int kFirst = kGroupThreads * (kGroups - 1), kCount = kWorkers - kFirst;
  if (static_cast<int>(threadIdx.x) < kFirst) return;
  if (i == 0) forget(of_chain_before, kWordsOfToken, kFirst, kCount);
  if (i > 1) forget(chain.tokens[i - 2], chain.gemms[i - 1].inner / 2, kFirst, kCount);
}

template <int PACKS>
__device__ void work(const Chain& chain, const std::uint8_t* ring, std::uint8_t* token, Kept& kept) {
  const unsigned last = look_at(chain.turn) & 1;
  Gemms gemms(chain, ring, token, kept);
  EarlyNorm norm;
  norm.read(chain.gemms[0], Pairs::neighbours);
  int turn = 0;
  unsigned* words = nullptr;
  for (int i = 0; i < chain.count; ++i) {
    const Gemm& g = chain.gemms[i];
    const Pairs pairs = i > 0 && chain.gemms[i - 1].end == End::plain ? Pairs::of_tile : Pairs::neighbours;
    {
      Taking<PACKS> taking(g, pairs);
      if (i == 0) {
        taking.read();
      } else {
        // Threads that poll for words slow down threads of the block that still multiply.
        meet_workers();
        taking.read_words(words);
      }
      taking.leave(norm, token, kept);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // tensor cores use the async proxy
#endif
    meet_workers();
    if (i + 1 < chain.count)
      norm.read(chain.gemms[i + 1], g.end == End::plain ? Pairs::of_tile : Pairs::neighbours);
    words = i + 1 == chain.count ? nullptr : i + 2 == chain.count ? chain.last_tokens[last] : chain.tokens[i];
    multiply_tiles(chain, g, words, gemms, kept, turn);
    forget_tokens(chain, i, chain.last_tokens[last ^ 1]);
  }
  // All blocks have read it: this block has since seen a result to which each of them contributed.
  if (blockIdx.x == 0 && threadIdx.x == 0) leave(chain.turn, last ^ 1);
}

template <int PACKS>
__global__ void __launch_bounds__(kThreads, 1) decode_chain_kernel(const __grid_constant__ Chain chain) {
  __shared__ Kept kept;
  // The swizzle uses address bits, so the ring must be aligned to 1024 bytes.
  std::uint8_t* const shared = dynamic_shared();
  std::uint8_t* const ring = shared + (1024 - shared_address(shared) % 1024) % 1024;
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < chain.stages; ++stage) {
      make_barrier(kept.filled[stage], 1);
      make_barrier(kept.emptied[stage], kWorkers / kWarp);
    }
    open_barriers();
  }
  __syncthreads();
  let_next_begin();
  // The weights do not depend on earlier kernels.
  if (threadIdx.x >= kWorkers) {
    if (threadIdx.x == kWorkers) fill(chain, ring, kept);
    return;
  }
  wait_for_previous();
  work<PACKS>(chain, ring, ring + chain.stages * kStageBytes, kept);
}

/// Returns the copy-engine view of a weight. The rows of a tile are pairs of runs of eight rows. The second
/// run holds the outputs that belong to the same threads as the first run. For a plain GEMM it is the next
/// eight rows. For gate and up, and for a rotated head, it is in the other half.
CUtensorMap weight_map(const DecodeGemmArgs& a) {
  const std::int64_t half_head = a.heads.head_dim / 2;
  TiledWeight weight{.data = a.weight.data, .bytes = a.weight.cols};
  if (a.end == DecodeGemmArgs::End::plain) {
    weight.second = 8;
    weight.group = 16;
    weight.groups = a.weight.rows / 16;
    weight.head = a.weight.rows;
  } else if (a.end == DecodeGemmArgs::End::gated) {
    weight.second = weight.head = a.weight.rows / 2;
    weight.groups = a.weight.rows / 16;
  } else {
    weight.second = half_head;
    weight.groups = half_head / 8;
    weight.head = 2 * half_head;
    weight.heads = a.weight.rows / weight.head;
  }
  return tensor_map(weight);
}

Gemm gemm_of(const DecodeGemmArgs& a) {
  const int outputs = static_cast<int>(a.weight.rows), half_dim = static_cast<int>(a.heads.head_dim / 2);
  const int tiles = outputs / kOutputs;
  return {.weight_scales = a.weight.scale_inv,
          .x = static_cast<const __nv_bfloat16*>(a.x.data),
          .norm_weight = a.norm_weight,
          .eps = a.eps,
          .one = a.one_plus_weight ? 1.0f : 0.0f,
          .bias = a.bias,
          .addend = static_cast<const __nv_bfloat16*>(a.addend.data),
          .y = static_cast<__nv_bfloat16*>(a.y.data),
          .position = a.positions,
          .cosine = a.cosine,
          .sine = a.sine,
          .rotated_heads = static_cast<int>(a.heads.q_heads + a.heads.kv_heads),
          .half_dim = half_dim,
          .end = a.end,
          .gelu = a.activation == Activation::gelu_tanh,
          .inner = static_cast<int>(a.weight.cols),
          .outputs = outputs,
          .runs = static_cast<int>(a.weight.cols) / kRunBytes,
          .tiles = tiles,
          .tiles_of_head = a.end == DecodeGemmArgs::End::rotated ? half_dim / (kOutputs / 2) : tiles};
}

std::int64_t most_inner(std::span<const DecodeGemmArgs> gemms) {
  std::int64_t most = 0;
  for (const DecodeGemmArgs& a : gemms) most = std::max(most, a.x.cols);
  return most;
}
std::int64_t token_bytes(std::span<const DecodeGemmArgs> gemms) {
  return most_inner(gemms) + kGap;
}
std::int64_t stages_of(std::span<const DecodeGemmArgs> gemms) {
  return std::min<std::int64_t>(kMostStages, (kMostShared - token_bytes(gemms)) / kStageBytes);
}

bool takes(const DecodeGemmArgs& a, int blocks) {
  // Limits of the runs of all tiles: each block has at least one, and their number times the number of blocks
  // fits in 32 bits.
  constexpr std::int64_t most_runs = std::int64_t{1} << 23;
  const std::int64_t runs = a.weight.rows / kOutputs * (a.weight.cols / kRunBytes);
  const Operand& w = a.weight;
  if (w.dtype != DType::e4m3 || a.x.rows != 1 || w.cols % kRunBytes != 0 || w.cols > kMostInner) return false;
  if (w.rows % kOutputs != 0 || runs < blocks || runs > most_runs) return false;
  return a.end != DecodeGemmArgs::End::rotated || a.heads.head_dim % kOutputs == 0;
}

/// True if all GEMMs except the last are plain or gated, because only these write words.
bool leave_tokens(std::span<const DecodeGemmArgs> gemms) {
  return std::ranges::none_of(gemms.first(gemms.size() - 1),
                              [](const DecodeGemmArgs& a) { return a.end == DecodeGemmArgs::End::rotated; });
}

/// True if each addend that an earlier GEMM of the chain writes is written by the same thread.
bool adds_its_own(std::span<const DecodeGemmArgs> gemms) {
  for (std::size_t g = 1; g < gemms.size(); ++g) {
    for (std::size_t before = 0; before < g && gemms[g].addend.data != nullptr; ++before) {
      if (gemms[before].y.data == gemms[g].addend.data && (gemms[before].end != DecodeGemmArgs::End::plain ||
                                                           gemms[before].weight.rows != gemms[g].weight.rows))
        return false;
    }
  }
  return true;
}

template <int PACKS>
void launch(Stream& stream, const Chain& chain, std::size_t bytes) {
  const auto kernel = decode_chain_kernel<PACKS>;
  octet::cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                          static_cast<int>(kMostShared + 1024)),
                     "cudaFuncSetAttribute");
  const auto blocks = static_cast<unsigned>(octet::cuda::properties(stream.device()).multiprocessors);
  launch_early(kernel, dim3(blocks), kThreads, bytes, octet::cuda::native(stream), "decode_chain", chain);
}

}  // namespace

bool has_decode_chain(const Device& device, std::span<const DecodeGemmArgs> gemms) {
  const int blocks = octet::cuda::properties(device).multiprocessors;
  if (octet::cuda::code_here() != 90 || blocks > kMostBlocks || stages_of(gemms) < kFewestStages)
    return false;
  return std::ranges::all_of(gemms, [&](const DecodeGemmArgs& a) { return takes(a, blocks); }) &&
         leave_tokens(gemms) && adds_its_own(gemms);
}

void decode_chain(Stream& stream, std::span<const DecodeGemmArgs> gemms) {
  static_assert(octet::cuda::kChainWords >= (kDecodeChain * kWordsOfToken) + kMostBlocks * kOutputs + 1);
  Chain chain{};
  for (const DecodeGemmArgs& a : gemms) {
    chain.weights[chain.count] = weight_map(a);
    chain.gemms[chain.count] = gemm_of(a);
    ++chain.count;
  }
  chain.stages = static_cast<int>(stages_of(gemms));
  unsigned* words = octet::cuda::chain_words(stream);
  for (unsigned*& of_token : chain.tokens) of_token = std::exchange(words, words + kWordsOfToken);
  for (unsigned*& of_token : chain.last_tokens) of_token = std::exchange(words, words + kWordsOfToken);
  chain.partials = words;
  chain.turn = words + kMostBlocks * kOutputs;
  const auto bytes = static_cast<std::size_t>(chain.stages * kStageBytes + token_bytes(gemms) + 1024);
  most_inner(gemms) <= kRegisterPacks* kWorkers* kPack ? launch<kRegisterPacks>(stream, chain, bytes)
                                                       : launch<kMostPacks>(stream, chain, bytes);
}

}  // namespace octet::ops::cuda
