#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 512;

/// Maximum so far, and the sum of exponentials relative to it.
struct Partial {
  float most;
  float sum;
};
struct Merge {
  __device__ Partial operator()(Partial a, Partial b) const {
    // Ordered, so that both lanes of an exchange compute the same bits.
    const float most = fmaxf(a.most, b.most);
    const float x = a.sum == 0.0f ? 0.0f : a.sum * __expf(a.most - most);
    const float y = b.sum == 0.0f ? 0.0f : b.sum * __expf(b.most - most);
    return {most, x + y};
  }
};
__device__ inline Partial merge_block(Partial x, Partial* shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    const Partial other{__shfl_xor_sync(0xFFFFFFFFu, x.most, offset),
                        __shfl_xor_sync(0xFFFFFFFFu, x.sum, offset)};
    x = Merge{}(x, other);
  }
  __syncthreads();
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  Partial all = shared[0];
  for (int w = 1; w < kThreads / kWarp; ++w) all = Merge{}(all, shared[w]);
  return all;
}

/// The logit that counts.
__device__ inline float capped(float x, float cap) {
  return cap > 0 ? cap * tanhf(__fdiv_rn(x, cap)) : x;
}

// A block takes a row at a time: one pass for maximum and sum, one for the gradient, which finds the row in
// the second-level cache.
template <typename T>
__global__ void __launch_bounds__(kThreads) cross_entropy_kernel(CrossEntropyArgs a, bool vector) {
  __shared__ Partial shared[kWarp];
  const std::int64_t vocabulary = a.logits.cols;
  const float cap = a.soft_cap;
  constexpr std::int64_t step = static_cast<std::int64_t>(kThreads) * kPack;
  for (std::int64_t row = blockIdx.x; row < a.logits.rows; row += gridDim.x) {
    const std::int64_t target = a.targets[row];
    T* logits = row_of<T>(a.logits, row);
    if (target < 0) {
      if (a.row_loss && threadIdx.x == 0) a.row_loss[row] = 0.0f;
      if (!a.gradient) continue;
      const float zeros[kPack] = {};
      for (std::int64_t c = threadIdx.x * kPack; c < vocabulary; c += step) {
        const PackAt at = pack_at(c, vocabulary, vector);
        store_pack(logits + c, zeros, at.n, at.whole);
      }
      continue;
    }
    // A target that is no word has no logit: the loss shows it. Callers check targets before.
    const float at_target =
        target < vocabulary ? capped(to_float(logits[target]), cap) : __int_as_float(0x7FC00000);
    Partial mine{-INFINITY, 0.0f};
    for (std::int64_t c = threadIdx.x * kPack; c < vocabulary; c += step) {
      const PackAt at = pack_at(c, vocabulary, vector);
      float x[kPack];
      load_pack(static_cast<const T*>(logits) + c, x, at.n, at.whole);
      float most = mine.most;
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        x[i] = i < at.n ? capped(x[i], cap) : -INFINITY;
        most = fmaxf(most, x[i]);
      }
      float sum = mine.sum == 0.0f ? 0.0f : mine.sum * __expf(mine.most - most);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (i < at.n) sum += __expf(x[i] - most);
      }
      mine = {most, sum};
    }
    const Partial all = merge_block(mine, shared);
    if (a.row_loss && threadIdx.x == 0) {
      a.row_loss[row] = static_cast<float>(log(static_cast<double>(all.sum)) + static_cast<double>(all.most) -
                                           static_cast<double>(at_target));
    }
    if (!a.gradient) continue;
    const float inverse = __fdiv_rn(1.0f, all.sum);
    for (std::int64_t c = threadIdx.x * kPack; c < vocabulary; c += step) {
      const PackAt at = pack_at(c, vocabulary, vector);
      float x[kPack];
      load_pack(static_cast<const T*>(logits) + c, x, at.n, at.whole);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        const float logit = capped(x[i], cap);
        float p = __expf(logit - all.most) * inverse;
        if (c + i == target) p -= 1.0f;
        if (cap > 0) {
          const float t = __fdiv_rn(logit, cap);
          p *= 1.0f - t * t;
        }
        x[i] = p;
      }
      store_pack(logits + c, x, at.n, at.whole);
    }
    // The next row's first barrier comes before anybody writes `shared` again.
  }
}

// One block: each thread's values in order, then the threads as a tree of fixed shape.
__global__ void __launch_bounds__(1024) add_sum_kernel(AddSumArgs a) {
  __shared__ double shared[kWarp];
  double sum = 0;
  for (std::int64_t i = threadIdx.x; i < a.count; i += 1024) sum += static_cast<double>(a.values[i]);
  sum = block_reduce(sum, shared, Plus{});
  if (threadIdx.x == 0) *a.total += sum;
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& a) {
  if (a.logits.rows == 0) return;
  // Few blocks, so that the rows under way stay in the second-level cache.
  const unsigned grid = grid_of(stream, a.logits.rows, 1, 2);
  with_type(a.logits.dtype, [&](auto type) {
    cross_entropy_kernel<decltype(type)>
        <<<grid, kThreads, 0, octet::cuda::native(stream)>>>(a, packs(a.logits));
  });
  octet::cuda::check_launch("cross_entropy");
}

void add_sum(Stream& stream, const AddSumArgs& a) {
  if (a.count == 0) return;
  add_sum_kernel<<<1, 1024, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("add_sum");
}

}  // namespace octet::ops::cuda
