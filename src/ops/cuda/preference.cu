#include "octet/ops/preference.h"

#include "cuda/rows.cuh"
#include "preference_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kThreads = 256;

// One block per answer.
__global__ void __launch_bounds__(kThreads) answer_sums_kernel(AnswerSumsArgs a) {
  __shared__ double shared[kWarp];
  const std::int64_t answer = blockIdx.x;
  const std::int64_t begin = a.answers[answer], end = a.answers[answer + 1];
  const std::int64_t common = a.pairs ? begin + common_rows(a.answers, answer) : end;
  double front = 0, rear = 0;
  for (std::int64_t r = begin + threadIdx.x; r < end; r += kThreads)
    (r < common ? front : rear) += static_cast<double>(a.row_loss[r]);
  front = block_reduce(front, shared, Plus{});
  rear = block_reduce(rear, shared, Plus{});
  if (threadIdx.x == 0) a.out[answer] = -(front + a.beyond * rear);
}

// One block. A thread adds the pairs in order, because a micro-batch has few of them.
__global__ void __launch_bounds__(kThreads) preference_loss_kernel(PreferenceLossArgs a) {
  if (threadIdx.x == 0) {
    double shifts[2];
    make_shifts(a, shifts);
    for (std::int64_t p = 0; p < a.pairs; ++p) add_pair(a, p, shifts);
  }
  if (a.row_factors == nullptr) return;
  __syncthreads();
  for (std::int64_t answer = 0; answer < 2 * a.pairs; ++answer) {
    const std::int64_t begin = a.answers[answer], end = a.answers[answer + 1];
    const std::int64_t common = begin + common_rows(a.answers, answer);
    for (std::int64_t r = begin + threadIdx.x; r < end; r += kThreads)
      a.row_factors[r] = static_cast<float>(a.slopes[answer] * (r < common ? 1.0 : a.rule.beyond));
  }
}

}  // namespace

void answer_sums(Stream& stream, const AnswerSumsArgs& a) {
  if (a.count == 0) return;
  answer_sums_kernel<<<static_cast<unsigned>(a.count), kThreads, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("answer_sums");
}

void preference_loss(Stream& stream, const PreferenceLossArgs& a) {
  if (a.pairs == 0) return;
  preference_loss_kernel<<<1, kThreads, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("preference_loss");
}

}  // namespace octet::ops::cuda
