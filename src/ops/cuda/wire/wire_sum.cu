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

}  // namespace octet::ops::cuda
