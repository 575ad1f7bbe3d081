// Ordered sums of received parts, and other combinations of parts.
#include "cuda/wire/wire_tiles.cuh"

namespace octet::ops::cuda {
namespace {

using namespace wires;

// Three blocks per multiprocessor: the loads in flight then cover the memory latency.
template <Wire wire, typename E, int most>
__global__ void __launch_bounds__(kThreads, 3) sum_kernel(const __grid_constant__ Parts<most> parts, E* to,
                                                          std::int64_t count, bool accumulate, bool vector) {
  each_tile<kQuads>(count, vector, [&](auto tile, std::int64_t base) {
    constexpr bool whole = decltype(tile)::whole;
    constexpr int quads = decltype(tile)::quads;
    constexpr int at_once = !whole ? 1 : (wire == Wire::f32 ? 2 : 4);
    Values<quads> sum = {};
    for (int first = 0; first < parts.count; first += at_once) {
      PartTile<wire, decltype(tile)> part[at_once];
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p < parts.count) part[p].load(parts.of[first + p], base, count);
      }
#pragma unroll
      for (int p = 0; p < at_once; ++p) {
        if (first + p >= parts.count) continue;
        // The first part is not added to 0, because this would lose the sign of a zero.
        const bool starts = p == 0 && first == 0;
#pragma unroll
        for (int q = 0; q < quads; ++q) {
          float x[kQuad];
          part[p].get(q, x);
#pragma unroll
          for (int k = 0; k < kQuad; ++k) sum[q][k] = starts ? x[k] : sum[q][k] + x[k];
        }
      }
    }
    if (accumulate) {
      Values<quads> before;
      load_values<whole, quads>(to, base, count, before);
#pragma unroll
      for (int q = 0; q < quads; ++q) {
#pragma unroll
        for (int k = 0; k < kQuad; ++k) sum[q][k] = before[q][k] + sum[q][k];
      }
    }
    store_values<whole, quads>(to, base, count, sum);
  });
}

struct Larger {
  using Type = float;
  __device__ float operator()(float a, float b) const {
    if (a != a || b != b) return __uint_as_float(kNanBits);
    return a < b ? b : a;
  }
};
struct IntegerSum {
  using Type = std::int64_t;
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const {
    return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  }
};
struct DoubleSum {
  using Type = double;
  __device__ double operator()(double a, double b) const { return __dadd_rn(a, b); }
};

template <typename Two, int most>
__global__ void __launch_bounds__(kThreads)
    combine_kernel(const __grid_constant__ Parts<most> parts, typename Two::Type* to, std::int64_t count) {
  using T = typename Two::Type;
  const Two two;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < count;
       i += stride) {
    T result = static_cast<const T*>(parts.of[0])[i];
#pragma unroll 4
    for (int p = 1; p < parts.count; ++p) result = two(result, static_cast<const T*>(parts.of[p])[i]);
    to[i] = settled_here(result);
  }
}

/// Calls f(parameter) with the smaller of two parameter types that can hold the parts.
template <typename F>
void with_parts(const std::vector<const void*>& parts, F f) {
  const auto fill = [&](auto into) {
    std::copy(parts.begin(), parts.end(), into.of);
    into.count = static_cast<int>(parts.size());
    f(into);
  };
  if (parts.size() <= kFewParts) {
    fill(Parts<kFewParts>{});
  } else {
    fill(Parts<kManyParts>{});
  }
}

template <typename Two>
void launch_combine(Stream& stream, const CombineWork& w) {
  with_parts(w.parts, [&](const auto& parts) {
    combine_kernel<Two>
        <<<grid_of(stream, w.args.count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(
            parts, static_cast<typename Two::Type*>(w.args.to), w.args.count);
  });
}

}  // namespace

void sum_parts(Stream& stream, const SumPartsWork& w) {
  const SumPartsArgs& a = w.args;
  if (a.count == 0) return;
  const bool vector =
      moves_words(a.to, size_of(a.to_dtype)) &&
      std::all_of(w.parts.begin(), w.parts.end(), [&](const void* p) { return moves_words(p, a.wire); });
  with_parts(w.parts, [&](const auto& parts) {
    with_wire(a.wire, [&](auto wire) {
      with_values(a.to_dtype, [&](auto element) {
        using E = decltype(element);
        sum_kernel<decltype(wire)::value, E>
            <<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(
                parts, static_cast<E*>(a.to), a.count, a.accumulate, vector);
      });
    });
  });
  octet::cuda::check_launch("sum_parts");
}

void combine_parts(Stream& stream, const CombineWork& w) {
  if (w.args.count == 0) return;
  switch (w.args.how) {
    case Combine::max_f32:
      launch_combine<Larger>(stream, w);
      break;
    case Combine::sum_i64:
      launch_combine<IntegerSum>(stream, w);
      break;
    case Combine::sum_f64:
      launch_combine<DoubleSum>(stream, w);
      break;
  }
  octet::cuda::check_launch("combine_parts");
}

// Tree sums of micro-batches.

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
