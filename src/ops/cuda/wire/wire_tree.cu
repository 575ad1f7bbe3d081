// Tree sums of micro-batches.
#include "cuda/wire/wire_tiles.cuh"

namespace octet::ops::cuda {
namespace {

using namespace wires;

/// A tree as a kernel argument.
template <int most>
struct Tree {
  const float* of[most];
  unsigned short merges[most];
  int count;
};

// A thread sums n neighbouring elements. The top of its stack is in registers. Lower sums are in shared
// memory, level by level, so that neighbouring threads use neighbouring words.
template <int most, int n>
__global__ void __launch_bounds__(kThreads)
    tree_kernel(const __grid_constant__ Tree<most> tree, float* to, std::int64_t count, bool vector) {
  using Word = std::conditional_t<n == kQuad, float4, float>;
  static_assert(sizeof(Word) == n * sizeof(float));
  extern __shared__ float4 levels[];
  Word* const stack = reinterpret_cast<Word*>(levels) + threadIdx.x;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x * n;
  const auto sum_at = [&](auto is_whole, std::int64_t i) {
    constexpr bool whole = decltype(is_whole)::value;
    constexpr int at_once = 4;
    alignas(Word) float top[n] = {};
    int below = 0;
    for (int first = 0; first < tree.count; first += at_once) {
      alignas(Word) float next[at_once][n];
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p >= tree.count) continue;
        const float* from = tree.of[first + p] + i;
        if constexpr (whole) {
          *reinterpret_cast<Word*>(next[p]) = *reinterpret_cast<const Word*>(from);
        } else {
#pragma unroll
          for (int k = 0; k < n; ++k) next[p][k] = i + k < count ? from[k] : 0.0f;
        }
      }
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p >= tree.count) continue;
        if (first + p > 0) stack[below++ * blockDim.x] = *reinterpret_cast<const Word*>(top);
#pragma unroll
        for (int k = 0; k < n; ++k) top[k] = next[p][k];
        for (int merge = tree.merges[first + p]; merge > 0; --merge) {
          alignas(Word) float lower[n];
          *reinterpret_cast<Word*>(lower) = stack[--below * blockDim.x];
#pragma unroll
          for (int k = 0; k < n; ++k) top[k] = lower[k] + top[k];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < n; ++k) top[k] = settled_here(top[k]);
    if constexpr (whole) {
      *reinterpret_cast<Word*>(to + i) = *reinterpret_cast<const Word*>(top);
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (i + k < count) to[i + k] = top[k];
      }
    }
  };
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * n; i < count;
       i += stride) {
    if (vector && i + n <= count) {
      sum_at(std::true_type{}, i);
    } else {
      sum_at(std::false_type{}, i);
    }
  }
}

template <int most>
void launch_tree(Stream& stream, const SumTreeWork& w) {
  Tree<most> tree{};
  std::copy(w.addends.begin(), w.addends.end(), tree.of);
  std::copy(w.merges.begin(), w.merges.end(), tree.merges);
  tree.count = static_cast<int>(w.addends.size());
  std::size_t height = 0, levels = 0;  // number of sums below the top
  for (std::size_t a = 0; a < w.merges.size(); ++a) {
    if (a > 0) levels = std::max(levels, ++height);
    height -= static_cast<std::size_t>(w.merges[a]);
  }
  // As many threads as have space for their stacks. Single elements if this would be less than a warp.
  constexpr std::size_t room = 48 * 1024;
  unsigned threads = kThreads;
  while (threads > kWarp && levels * threads * kQuad * sizeof(float) > room) threads /= 2;
  const bool quads = levels * threads * kQuad * sizeof(float) <= room;
  const int n = quads ? kQuad : 1;
  const std::size_t shared = levels * threads * static_cast<std::size_t>(n) * sizeof(float);
  const auto kernel = quads ? tree_kernel<most, kQuad> : tree_kernel<most, 1>;
  const bool vector = moves_words(w.args.to, sizeof(float)) &&
                      std::all_of(w.addends.begin(), w.addends.end(),
                                  [](const float* x) { return moves_words(x, sizeof(float)); });
  CUstream_st* const native = octet::cuda::native(stream);
  if (shared > room) {
    octet::cuda::check(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared)),
        "shared memory of sum_tree");
  }
  const unsigned grid = grid_of(stream, w.args.count, static_cast<std::int64_t>(threads) * n,
                                static_cast<int>(std::min(2048 / threads, 32u)));
  kernel<<<grid, threads, shared, native>>>(tree, w.args.to, w.args.count, vector);
}

}  // namespace

void sum_tree(Stream& stream, const SumTreeWork& w) {
  if (w.args.count == 0) return;
  if (w.addends.size() <= kFewParts) {
    launch_tree<kFewParts>(stream, w);
  } else {
    launch_tree<kManyParts>(stream, w);
  }
  octet::cuda::check_launch("sum_tree");
}

}  // namespace octet::ops::cuda
