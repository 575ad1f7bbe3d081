#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void rope_table_kernel(RopeTableArgs a) {
  const std::int64_t count = a.positions * a.half_dim;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t e = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; e < count;
       e += stride) {
    const float angle = static_cast<float>(e / a.half_dim) * a.inv_freq[e % a.half_dim];
    // Through double, so that the table is right to the last bit.
    a.cosine[e] = static_cast<float>(cos(static_cast<double>(angle))) * a.factor;
    a.sine[e] = static_cast<float>(sin(static_cast<double>(angle))) * a.factor;
  }
}

// A thread rotates a pack of one head's first half with its partners in the second.
template <typename T>
__global__ void __launch_bounds__(kThreads) rope_kernel(RopeArgs a, bool vector) {
  const std::int64_t half = a.heads.head_dim / 2;
  const std::int64_t heads = a.heads.q_heads + a.heads.kv_heads;
  const std::int64_t half_packs = (half + kPack - 1) / kPack;
  const std::int64_t count = a.qkv.rows * heads * half_packs;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  const float sign = a.inverse ? -1.0f : 1.0f;
  for (std::int64_t p = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; p < count;
       p += stride) {
    const std::int64_t col = p % half_packs * kPack;
    const std::int64_t head = p / half_packs % heads, row = p / half_packs / heads;
    const PackAt at = pack_at(col, half, vector);
    const std::int64_t place = a.positions[row] * half + col;
    T* first = row_of<T>(a.qkv, row) + head * a.heads.head_dim + col;
    float x[kPack], y[kPack], c[kPack], s[kPack];
    load_pack(static_cast<const T*>(first), x, at.n, at.whole);
    load_pack(static_cast<const T*>(first + half), y, at.n, at.whole);
    load_pack(a.cosine + place, c, at.n, at.whole);
    load_pack(a.sine + place, s, at.n, at.whole);
    float u[kPack], v[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      s[i] *= sign;
      u[i] = x[i] * c[i] - y[i] * s[i];
      v[i] = y[i] * c[i] + x[i] * s[i];
    }
    store_pack(first, u, at.n, at.whole);
    store_pack(first + half, v, at.n, at.whole);
  }
}

}  // namespace

void rope_table(Stream& stream, const RopeTableArgs& a) {
  const std::int64_t count = a.positions * a.half_dim;
  if (count == 0) return;
  rope_table_kernel<<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("rope_table");
}

void rope(Stream& stream, const RopeArgs& a) {
  if (a.qkv.rows == 0) return;
  const std::int64_t half = a.heads.head_dim / 2;
  const std::int64_t count = a.qkv.rows * (a.heads.q_heads + a.heads.kv_heads) * ceil_div(half, kPack);
  const bool vector = packs(a.qkv) && half % kPack == 0 && packs(a.cosine) && packs(a.sine);
  if (count > 0) {
    with_type(a.qkv.dtype, [&](auto type) {
      rope_kernel<decltype(type)>
          <<<grid_of(stream, count, kThreads), kThreads, 0, octet::cuda::native(stream)>>>(a, vector);
    });
    octet::cuda::check_launch("rope");
  }
  // The values are part of the copy, so it is made of the whole matrix.
  if (a.quantize.row || a.quantize.transposed || a.quantize.amax)
    quantize(stream, QuantizeArgs{a.qkv, a.quantize});
}

}  // namespace octet::ops::cuda
