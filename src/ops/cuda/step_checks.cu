// Hashes of memory and limits of a step.
#include "cuda/rows.cuh"
#include "hash_word.h"
#include "kernels.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

__device__ inline void add(Hash* to, std::uint64_t first, std::uint64_t second) {
  atomicAdd(reinterpret_cast<unsigned long long*>(&to->first), static_cast<unsigned long long>(first));
  atomicAdd(reinterpret_cast<unsigned long long*>(&to->second), static_cast<unsigned long long>(second));
}

// Integer sums do not depend on the order.
__global__ void __launch_bounds__(kThreads) hash_kernel(HashArgs a, bool whole_words) {
  const auto* bytes = static_cast<const unsigned char*>(a.data);
  const std::int64_t words = (a.bytes + 7) / 8;
  const std::uint64_t place = a.at / 8;
  std::uint64_t first = 0, second = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = blockIdx.x * static_cast<std::int64_t>(blockDim.x) + threadIdx.x; i < words;
       i += stride) {
    std::uint64_t word = 0;
    const std::int64_t left = a.bytes - i * 8;
    if (whole_words && left >= 8) {
      word = reinterpret_cast<const std::uint64_t*>(bytes)[i];
    } else {
      for (std::int64_t b = 0; b < (left < 8 ? left : 8); ++b)
        word |= static_cast<std::uint64_t>(bytes[i * 8 + b]) << (8 * b);
    }
    const std::uint64_t at = place + static_cast<std::uint64_t>(i);
    const std::uint64_t mixed = hash_word(word, at);
    first += mixed;
    second += hash_weighted(mixed, at);
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    first += __shfl_down_sync(0xFFFFFFFFu, first, offset);
    second += __shfl_down_sync(0xFFFFFFFFu, second, offset);
  }
  if (threadIdx.x % 32 == 0) add(a.to, first, second);
}

__global__ void limit_step_kernel(LimitStepArgs a) {
  StepScalars& s = *a.scalars;
  double loss = 0;
  for (std::int64_t i = 0; i < a.losses; ++i) loss = __dadd_rn(loss, a.loss_sums[i]);
  const bool above = __ddiv_rn(loss, s.label_tokens) > a.limits.loss || s.grad_norm > a.limits.grad_norm;
  if (s.skip != 0 || !above) return;
  s.skip = 1;
  s.grad_scale = 0.0f;
}

}  // namespace

void add_hash(Stream& stream, const HashArgs& a) {
  if (a.bytes == 0) return;
  const bool whole_words = reinterpret_cast<std::uintptr_t>(a.data) % 8 == 0;
  hash_kernel<<<grid_of(stream, (a.bytes + 7) / 8, std::int64_t{kThreads} * 4), kThreads, 0,
                octet::cuda::native(stream)>>>(a, whole_words);
  octet::cuda::check_launch("add_hash");
}

void limit_step(Stream& stream, const LimitStepArgs& a) {
  limit_step_kernel<<<1, 1, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("limit_step");
}

}  // namespace octet::ops::cuda
