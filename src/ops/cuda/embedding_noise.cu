#include "octet/ops/embedding_noise.h"

#include "cuda/rows.cuh"
#include "noise_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) embedding_noise_kernel(EmbeddingNoiseArgs a, bool vector) {
  const std::int64_t row_packs = (a.x.cols + kPack - 1) / kPack;
  const std::int64_t count = a.x.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    const std::int64_t row = p / row_packs, col = p % row_packs * kPack;
    const PackAt at = pack_at(col, a.x.cols, vector);
    T* to = row_of<T>(a.x, row) + col;
    float x[kPack];
    load_pack(static_cast<const T*>(to), x, at.n, at.whole);
    const float values =
        static_cast<float>(length_at(a.cu_seqlens, a.documents, row)) * static_cast<float>(a.x.cols);
    const float factor = __fdiv_rn(a.alpha, __fsqrt_rn(values));
    const std::uint64_t name = a.names[row];
#pragma unroll
    for (int j = 0; j < kPack; j += 4) {
      const auto u = noise_of(name, static_cast<std::uint32_t>((col + j) / 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j + i] = __fmaf_rn(factor, u[static_cast<std::size_t>(i)], x[j + i]);
    }
    store_pack(to, x, at.n, at.whole);
  }
}

}  // namespace

void embedding_noise(Stream& stream, const EmbeddingNoiseArgs& a) {
  if (a.x.rows * a.x.cols == 0) return;
  const bool vector = packs(a.x);
  const std::int64_t count = a.x.rows * ceil_div(a.x.cols, kPack);
  with_type(a.x.dtype, [&](auto type) {
    embedding_noise_kernel<decltype(type)>
        <<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(a, vector);
  });
  octet::cuda::check_launch("embedding_noise");
}

}  // namespace octet::ops::cuda
