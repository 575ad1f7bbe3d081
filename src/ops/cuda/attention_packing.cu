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
  const std::int64_t last = i < args.count ? i : args.count;
  const std::int64_t start = args.cu_seqlens[last];
  std::int64_t apart = 0;
  for (std::int64_t d = 0; d < last; ++d) {
    const std::int64_t length = args.cu_seqlens[d + 1] - args.cu_seqlens[d];
    apart += (length + kTileRows - 1) / kTileRows * kTileRows;
  }
  if (i < args.padded) {
    args.lengths[i] = i < args.count ? args.cu_seqlens[i + 1] - args.cu_seqlens[i] : 0;
  }
  for (int array = 0; array < kOffsetArrays; ++array) {
    const auto a = static_cast<unsigned>(array);
    args.offsets[array * args.step + i] = (args.apart[a] ? apart : start) * args.elements_a_token[a];
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

/// The row of a token in an array whose documents stand apart.
__device__ std::int64_t row_apart(const ApartRows& rows, std::int64_t token) {
  std::int64_t low = 0, high = rows.count;  // the document lies in [low, high)
  while (high - low > 1) {
    const std::int64_t middle = (low + high) / 2;
    if (rows.cu_seqlens[middle] <= token) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return rows.starts[low] / rows.unit + token - rows.cu_seqlens[low];
}

__global__ void __launch_bounds__(kPackingBlock)
    numbers_apart_kernel(const ApartRows rows, const float* ours, std::int64_t stride, std::int64_t heads,
                         float* apart) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPackingBlock + threadIdx.x;
  if (i >= heads * rows.tokens) return;
  const std::int64_t token = i / heads, head = i % heads;
  apart[row_apart(rows, token) * heads + head] = ours[head * stride + token];
}

struct ApartCopies {
  ApartCopy arrays[3];
};

// A block takes a token.
__global__ void __launch_bounds__(kPackingBlock)
    copy_from_apart_kernel(const ApartRows rows, const ApartCopies copies, std::int64_t ld) {
  const std::int64_t token = blockIdx.x;
  const std::int64_t row = row_apart(rows, token);
  for (const ApartCopy& copy : copies.arrays) {
    const std::int64_t vectors = copy.width / 8;
    const auto* from = static_cast<const uint4*>(copy.apart) + row * vectors;
    auto* to = reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(copy.to) + token * ld);
    for (std::int64_t v = threadIdx.x; v < vectors; v += kPackingBlock) to[v] = from[v];
  }
}

}  // namespace

void numbers_apart(cudaStream_t stream, const ApartRows& rows, const float* ours, std::int64_t stride,
                   std::int64_t heads, float* apart) {
  numbers_apart_kernel<<<packing_blocks(heads * rows.tokens), kPackingBlock, 0, stream>>>(rows, ours, stride,
                                                                                          heads, apart);
  octet::cuda::check_launch("attention_backward");
}

void copy_from_apart(cudaStream_t stream, const ApartRows& rows, const std::array<ApartCopy, 3>& arrays,
                     std::int64_t ld) {
  const ApartCopies copies{{arrays[0], arrays[1], arrays[2]}};
  copy_from_apart_kernel<<<static_cast<unsigned>(rows.tokens), kPackingBlock, 0, stream>>>(rows, copies, ld);
  octet::cuda::check_launch("attention_backward");
}

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
