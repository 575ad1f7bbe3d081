#include "cuda/rows.cuh"
#include "octet/base/random.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

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
