#include "octet/ops/dropout.h"

#include "cuda/rows.cuh"
#include "dropout_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(DropoutArgs a, DropoutRule rule, bool vector) {
  const std::int64_t row_packs = (a.x.cols + kPack - 1) / kPack;
  const std::int64_t count = a.x.rows * row_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    const std::int64_t row = p / row_packs, col = p % row_packs * kPack;
    const PackAt at = pack_at(col, a.x.cols, vector);
    float x[kPack];
    load_pack(row_of<T>(a.x, row) + col, x, at.n, at.whole);
    const std::uint64_t name = a.names[row];
#pragma unroll
    for (int j = 0; j < kPack; j += 4) {
      const auto bits = rule.numbers(name, static_cast<std::uint32_t>((col + j) / 4));
#pragma unroll
      for (int i = 0; i < 4; ++i) x[j + i] *= rule.factor(bits[static_cast<std::size_t>(i)]);
    }
    T* to = row_of<T>(a.out, row) + col;
    if (a.accumulate) {
      float before[kPack];
      load_pack(static_cast<const T*>(to), before, at.n, at.whole);
#pragma unroll
      for (int j = 0; j < kPack; ++j) x[j] += before[j];
    }
    store_pack(to, x, at.n, at.whole);
  }
}

}  // namespace

void dropout(Stream& stream, const DropoutArgs& a) {
  if (a.x.rows * a.x.cols == 0) return;
  const bool vector = packs(a.x) && packs(a.out);
  const std::int64_t count = a.x.rows * ceil_div(a.x.cols, kPack);
  with_type(a.x.dtype, [&](auto type) {
    dropout_kernel<decltype(type)>
        <<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(
            a, DropoutRule(a.key, a.rate), vector);
  });
  octet::cuda::check_launch("dropout");
}

}  // namespace octet::ops::cuda
