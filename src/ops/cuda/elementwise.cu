#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

/// Calls f(begin, n) for the packs of [0, count) of this thread.
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
    add_kernel(const T* from, float* to, std::int64_t count, bool vector) {
  each_pack(count, [&](std::int64_t i, int n) {
    const bool whole = vector && n == kPack;
    float x[kPack], sum[kPack];
    load_pack(from + i, x, n, whole);
    load_pack(to + i, sum, n, whole);
#pragma unroll
    for (int j = 0; j < kPack; ++j) sum[j] += x[j];
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
  with_type(a.from_dtype, [&](auto type) {
    using T = decltype(type);
    add_kernel<T><<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(
        static_cast<const T*>(a.from), a.to, a.count, aligned(a.from) && aligned(a.to));
  });
  octet::cuda::check_launch("add");
}

void fill(Stream& stream, const FillArgs& a) {
  if (a.count == 0) return;
  fill_kernel<<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(a, aligned(a.x));
  octet::cuda::check_launch("fill");
}

}  // namespace octet::ops::cuda
