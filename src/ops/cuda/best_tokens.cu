// One block per row. It reads the row once for the largest logit, and again if the sum is wanted.
#include "cuda/rows_of_logits.cuh"
#include "octet/device/cuda.h"
#include "octet/ops/best_tokens.h"

namespace octet::ops::cuda {

void best_tokens(Stream& stream, const BestTokensArgs& args);
void fill_ids(Stream& stream, const FillIdsArgs& args);

namespace {

__global__ void __launch_bounds__(kLogitThreads)
    best_tokens_kernel(const float* logits, std::int64_t ld, std::int64_t vocabulary, bool normalizers,
                       BestToken* out) {
  __shared__ FoundLogit found_by[kLogitWarps];
  __shared__ double sums[kLogitWarps];
  const float* row = logits + blockIdx.x * ld;
  const FoundLogit found = best_of_row(row, vocabulary, found_by);
  const double normalizer = normalizers ? normalizer_of_row(row, vocabulary, found.logit, sums) : 0.0;
  if (threadIdx.x == 0) out[blockIdx.x] = {.normalizer = normalizer, .logit = found.logit, .id = found.id};
}

__global__ void fill_ids_kernel(const BestToken* best, std::int32_t* ids, std::int64_t count) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i < count && ids[i] < 0) ids[i] = best[-1 - ids[i]].id;
}

}  // namespace

void best_tokens(Stream& stream, const BestTokensArgs& args) {
  cudaStream_t native = octet::cuda::native(stream);
  best_tokens_kernel<<<static_cast<unsigned>(args.logits.rows), kLogitThreads, 0, native>>>(
      static_cast<const float*>(args.logits.data), args.logits.ld, args.logits.cols, args.normalizers,
      args.out);
  octet::cuda::check_launch("best_tokens");
}

void fill_ids(Stream& stream, const FillIdsArgs& args) {
  const std::int64_t blocks = (args.count + kLogitThreads - 1) / kLogitThreads;
  fill_ids_kernel<<<static_cast<unsigned>(blocks), kLogitThreads, 0, octet::cuda::native(stream)>>>(
      args.best, args.ids, args.count);
  octet::cuda::check_launch("fill_ids");
}

}  // namespace octet::ops::cuda
