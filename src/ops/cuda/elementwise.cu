#include "octet/ops/elementwise.h"

#include "cuda/rows.cuh"
#include "octet/base/random.h"

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

template <typename T>
__global__ void __launch_bounds__(kThreads)
    scale_kernel(T* data, const float* factor, std::int64_t count, bool vector) {
  const float by = *factor;
  each_pack(count, [&](std::int64_t i, int n) {
    const bool whole = vector && n == kPack;
    float x[kPack];
    load_pack(data + i, x, n, whole);
#pragma unroll
    for (int j = 0; j < kPack; ++j) x[j] *= by;
    store_pack(data + i, x, n, whole);
  });
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

void scale_by(Stream& stream, const ScaleByArgs& a) {
  if (a.count == 0) return;
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    scale_kernel<T><<<grid_for(stream, a.count), kThreads, 0, octet::cuda::native(stream)>>>(
        static_cast<T*>(a.x), a.factor, a.count, aligned(a.x));
  });
  octet::cuda::check_launch("scale_by");
}

namespace {

/// Must match octet::normal.
__device__ inline float normal_of(std::uint64_t seed, std::uint64_t index) {
  const auto r = philox(seed, RandomUse::init, index);
  const double u = (static_cast<double>(r[0]) + 1.0) * 0x1p-32;
  const double v = static_cast<double>(r[1]) * 0x1p-32;
  return static_cast<float>(sqrt(-2.0 * log(u)) * cos(2.0 * 3.14159265358979323846 * v));
}

template <typename T>
__global__ void __launch_bounds__(kThreads) normal_kernel(RandomNormalArgs a, T* out, bool vector) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x * kPack;
  for (std::int64_t i = (blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x) * kPack;
       i < a.count; i += stride) {
    const int n = a.count - i < kPack ? static_cast<int>(a.count - i) : kPack;
    float x[kPack];
    for (int j = 0; j < kPack; ++j) {
      x[j] = j < n ? a.deviation * normal_of(a.seed, number_of(a, i + j)) : 0.0f;
    }
    store_pack(out + i, x, n, vector && n == kPack);
  }
}

}  // namespace

void random_normal(Stream& stream, const RandomNormalArgs& a) {
  if (a.count == 0) return;
  const bool vector = reinterpret_cast<std::uintptr_t>(a.out) % 16 == 0;
  const unsigned blocks = grid_of(stream, a.count, std::int64_t{kThreads} * kPack);
  with_type(a.dtype, [&](auto type) {
    using T = decltype(type);
    normal_kernel<T><<<blocks, kThreads, 0, octet::cuda::native(stream)>>>(a, static_cast<T*>(a.out), vector);
  });
  octet::cuda::check_launch("random_normal");
}

}  // namespace octet::ops::cuda
