#include "octet/ops/judgement.h"

#include "cuda/rows.cuh"
#include "judgement_rule.h"

namespace octet::ops::cuda {
namespace {

constexpr int kJudgementThreads = 256;

// One block. A thread adds the answers in order, because a micro-batch has few of them.
__global__ void __launch_bounds__(kJudgementThreads) judgement_loss_kernel(JudgementLossArgs a) {
  if (threadIdx.x == 0) {
    const double supervised = supervised_factor(a, desirable_answers(a));
    for (std::int64_t i = 0; i < a.count; ++i) add_answer(a, i, supervised);
  }
  if (a.row_factors == nullptr) return;
  __syncthreads();
  for (std::int64_t i = 0; i < a.count; ++i)
    for (std::int64_t r = a.answers[i] + threadIdx.x; r < a.answers[i + 1]; r += kJudgementThreads)
      a.row_factors[r] = static_cast<float>(a.slopes[i]);
}

}  // namespace

void judgement_loss(Stream& stream, const JudgementLossArgs& a) {
  if (a.count == 0) return;
  judgement_loss_kernel<<<1, kJudgementThreads, 0, octet::cuda::native(stream)>>>(a);
  octet::cuda::check_launch("judgement_loss");
}

}  // namespace octet::ops::cuda
