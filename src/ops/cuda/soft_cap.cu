#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) soft_cap_kernel(Matrix x, float cap, bool vector) {
  const std::int64_t row_packs = (x.cols + kPack - 1) / kPack;
  const std::int64_t count = x.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    T* to = row_of<T>(x, p / row_packs) + p % row_packs * kPack;
    const PackAt at = pack_at(p % row_packs * kPack, x.cols, vector);
    float y[kPack];
    load_pack(static_cast<const T*>(to), y, at.n, at.whole);
#pragma unroll
    for (int i = 0; i < kPack; ++i) y[i] = cap * tanhf(__fdiv_rn(y[i], cap));
    store_pack(to, y, at.n, at.whole);
  }
}

}  // namespace

void soft_cap(Stream& stream, const SoftCapArgs& a) {
  const std::int64_t count = a.x.rows * ceil_div(a.x.cols, kPack);
  if (count == 0) return;
  with_type(a.x.dtype, [&](auto type) {
    soft_cap_kernel<decltype(type)>
        <<<grid_of(stream, count, kThreads, 4), kThreads, 0, octet::cuda::native(stream)>>>(a.x, a.cap,
                                                                                            packs(a.x));
  });
  octet::cuda::check_launch("soft_cap");
}

}  // namespace octet::ops::cuda
