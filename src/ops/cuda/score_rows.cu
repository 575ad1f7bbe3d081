#include "octet/ops/score_rows.h"

#include "cuda/rows.cuh"

namespace octet::ops::cuda {
namespace {

constexpr int kScoreThreads = 256;

template <typename T>
__global__ void __launch_bounds__(kScoreThreads) score_rows_kernel(ScoreRowsArgs a) {
  const std::int64_t r = blockIdx.x * static_cast<std::int64_t>(kScoreThreads) + threadIdx.x;
  if (r >= a.scores.rows) return;
  T* const score = row_of<T>(a.scores, r);
  float value[kPack];
  load_pack(static_cast<const T*>(score), value, 1, false);
  if (a.row_loss != nullptr) a.row_loss[r] = -value[0];
  if (a.row_factors == nullptr) return;
  value[0] = -a.row_factors[r];
  store_pack(score, value, 1, false);
}

}  // namespace

void score_rows(Stream& stream, const ScoreRowsArgs& a) {
  if (a.scores.rows == 0) return;
  with_type(a.scores.dtype, [&](auto type) {
    score_rows_kernel<decltype(type)><<<static_cast<unsigned>(ceil_div(a.scores.rows, kScoreThreads)),
                                        kScoreThreads, 0, octet::cuda::native(stream)>>>(a);
  });
  octet::cuda::check_launch("score_rows");
}

}  // namespace octet::ops::cuda
