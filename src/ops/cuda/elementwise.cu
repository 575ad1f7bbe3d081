#include <algorithm>

#include "cuda/rows.cuh"
#include "octet/base/error.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxParts = 64;

struct Parts {
  const void* of[kMaxParts];
  int count;
};

/// Calls f(begin, n) for packs of [0, count) that this thread takes.
template <typename F>
__device__ inline void each_pack(std::int64_t count, F f) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kPack;
  for (std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x) * kPack; i < count;
       i += stride) {
    const std::int64_t left = count - i;
    f(i, left < kPack ? static_cast<int>(left) : kPack);
  }
}

template <typename From, typename To>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(const From* from, To* to, std::int64_t count, bool vector) {
  each_pack(count, [&](std::int64_t i, int n) {
    float x[kPack];
    load_pack(from + i, x, n, vector && n == kPack);
    if (vector && n == kPack) {
      alignas(16) To raw[kPack];
#pragma unroll
      for (int j = 0; j < kPack; ++j) raw[j] = from_float<To>(x[j]);
#pragma unroll
      for (int w = 0; w < static_cast<int>(sizeof(raw) / 16); ++w) {
        reinterpret_cast<uint4*>(to + i)[w] = reinterpret_cast<const uint4*>(raw)[w];
      }
    } else {
      for (int j = 0; j < n; ++j) to[i + j] = from_float<To>(x[j]);
    }
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(Parts parts, float* to, std::int64_t count, bool accumulate, bool vector) {
  each_pack(count, [&](std::int64_t i, int n) {
    const bool whole = vector && n == kPack;
    float sum[kPack];
    load_pack(static_cast<const T*>(parts.of[0]) + i, sum, n, whole);
    for (int p = 1; p < parts.count; ++p) {
      float x[kPack];
      load_pack(static_cast<const T*>(parts.of[p]) + i, x, n, whole);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum[j] += x[j];
    }
    if (accumulate) {
      float before[kPack];
      load_pack(to + i, before, n, whole);
#pragma unroll
      for (int j = 0; j < kPack; ++j) sum[j] = before[j] + sum[j];
    }
    store_pack(to + i, sum, n, whole);
  });
}

__global__ void __launch_bounds__(kThreads) fill_kernel(FillArgs a, bool vector) {
  float x[kPack];
#pragma unroll
  for (int j = 0; j < kPack; ++j) x[j] = a.value;
  each_pack(a.count, [&](std::int64_t i, int n) { store_pack(a.x + i, x, n, vector && n == kPack); });
}

bool aligned(const void* x) {
  return reinterpret_cast<std::uintptr_t>(x) % 16 == 0;
}
unsigned grid_for(const Stream& stream, std::int64_t count) {
  return grid_of(stream, count, std::int64_t{kThreads} * kPack);
}

template <typename F>
void with_float_type(DType dtype, F f) {
  if (dtype == DType::f16) {
    f(__half{});
  } else {
    with_type(dtype, f);
  }
}

}  // namespace

void convert(Stream& stream, const ConvertArgs& a) {
  if (a.count == 0) return;
  if (a.from_dtype == a.to_dtype) {
    const std::size_t bytes = static_cast<std::size_t>(a.count) * size_of(a.to_dtype);
    stream.device().copy(stream, a.to, a.from, bytes);
    return;
  }
  with_float_type(a.from_dtype, [&](auto from_type) {
    with_float_type(a.to_dtype, [&](auto to_type) {
      using From = decltype(from_type);
      using To = decltype(to_type);
      convert_kernel<<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(
          static_cast<const From*>(a.from), static_cast<To*>(a.to), a.count,
          aligned(a.from) && aligned(a.to));
    });
  });
  octet::cuda::check_launch("convert");
}

void add(Stream& stream, const AddArgs& a) {
  if (a.count == 0) return;
  const Parts parts{{a.from}, 1};
  with_type(a.from_dtype, [&](auto type) {
    sum_kernel<decltype(type)><<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(
        parts, a.to, a.count, true, aligned(a.from) && aligned(a.to));
  });
  octet::cuda::check_launch("add");
}

void sum_in_order(Stream& stream, const SumInOrderWork& w) {
  if (w.args.count == 0 || w.parts.empty()) return;
  octet::check(w.parts.size() <= kMaxParts, "sum_in_order: a GPU sums at most 64 parts");
  Parts parts{{}, static_cast<int>(w.parts.size())};
  std::copy(w.parts.begin(), w.parts.end(), parts.of);
  const bool vector = aligned(w.args.to) && std::all_of(w.parts.begin(), w.parts.end(), aligned);
  with_type(w.args.dtype, [&](auto type) {
    sum_kernel<decltype(type)><<<grid_for(stream, w.args.count), kThreads, 0, octet::cuda::native(stream)>>>(
        parts, w.args.to, w.args.count, w.args.accumulate, vector);
  });
  octet::cuda::check_launch("sum_in_order");
}

void fill(Stream& stream, const FillArgs& a) {
  if (a.count == 0) return;
  fill_kernel<<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(a, aligned(a.x));
  octet::cuda::check_launch("fill");
}

}  // namespace octet::ops::cuda
