#include "attention_packing.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

constexpr int kPackingBlock = 256;

unsigned packing_blocks(std::int64_t items) {
  return static_cast<unsigned>((items + kPackingBlock - 1) / kPackingBlock);
}

__global__ void __launch_bounds__(kPackingBlock) describe_kernel(const PackedDocuments args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPackingBlock + threadIdx.x;
  if (i > args.padded) return;
  const std::int64_t start = args.cu_seqlens[i < args.count ? i : args.count];
  if (i < args.padded) {
    args.lengths[i] = i < args.count ? args.cu_seqlens[i + 1] - args.cu_seqlens[i] : 0;
  }
  for (int array = 0; array < kOffsetArrays; ++array) {
    args.offsets[array * args.step + i] = start * args.elements_a_token[static_cast<unsigned>(array)];
  }
}

template <bool TO_OURS>
__global__ void __launch_bounds__(kPackingBlock) numbers_kernel(const HeadNumbers args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPackingBlock + threadIdx.x;
  if (i >= args.heads * args.tokens) return;
  const std::int64_t head = i / args.tokens, token = i % args.tokens;
  if (token >= args.used) {
    if (TO_OURS) args.ours[i] = 0.0f;
    return;
  }
  const std::int64_t at = args.length == 0
                              ? token * args.heads + head
                              : (token / args.length * args.heads + head) * args.length + token % args.length;
  if (TO_OURS) {
    args.ours[i] = args.theirs[at];
  } else {
    args.theirs[at] = args.ours[i];
  }
}

}  // namespace

void describe_documents(cudaStream_t stream, const PackedDocuments& args) {
  describe_kernel<<<packing_blocks(args.padded + 1), kPackingBlock, 0, stream>>>(args);
  octet::cuda::check_launch("attention");
}

void numbers_to_ours(cudaStream_t stream, const HeadNumbers& args) {
  numbers_kernel<true><<<packing_blocks(args.heads * args.tokens), kPackingBlock, 0, stream>>>(args);
  octet::cuda::check_launch("attention");
}

void numbers_to_theirs(cudaStream_t stream, const HeadNumbers& args) {
  numbers_kernel<false><<<packing_blocks(args.heads * args.tokens), kPackingBlock, 0, stream>>>(args);
  octet::cuda::check_launch("attention_backward");
}

}  // namespace octet::ops::cuda
