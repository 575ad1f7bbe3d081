#include "cuda/attention/packing.h"
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

struct ColumnArrays {
  PaddedColumns of[kMostPaddedColumns];
};

/// One block per row of the copies. PAD: copies to the padded arrays, otherwise from them.
template <bool PAD>
__global__ void __launch_bounds__(kPackingBlock)
    columns_kernel(const PaddedDocuments documents, const ColumnArrays arrays) {
  const std::int64_t row = blockIdx.x;
  const std::int64_t document = row / documents.length, token = row % documents.length;
  const std::int64_t start = documents.cu_seqlens[document];
  const bool inside = start + token < documents.cu_seqlens[document + 1];
  if (!PAD && !inside) return;
  for (const PaddedColumns& array : arrays.of) {
    auto* ours =
        reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(array.ours) + (start + token) * array.ours_ld);
    auto* padded =
        reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(array.padded) + row * array.padded_ld);
    for (std::int64_t i = threadIdx.x; i < array.cols / 8; i += kPackingBlock) {
      if (PAD) {
        padded[i] = inside ? ours[i] : uint4{0, 0, 0, 0};
      } else {
        ours[i] = padded[i];
      }
    }
  }
}

__global__ void __launch_bounds__(kPackingBlock)
    padded_numbers_kernel(const PaddedDocuments documents, const PaddedNumbers args) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kPackingBlock + threadIdx.x;
  if (i >= documents.count * args.heads * documents.length) return;
  const std::int64_t token = i % documents.length, head = i / documents.length % args.heads;
  const std::int64_t document = i / documents.length / args.heads;
  const std::int64_t at = documents.cu_seqlens[document] + token;
  args.padded[i] = at < documents.cu_seqlens[document + 1] ? args.ours[head * args.tokens + at] : 0.0f;
}

template <bool PAD>
void copy_columns(cudaStream_t stream, const PaddedDocuments& documents,
                  const std::array<PaddedColumns, kMostPaddedColumns>& arrays) {
  ColumnArrays all{};
  for (std::size_t i = 0; i < arrays.size(); ++i) all.of[i] = arrays[i];
  const auto rows = static_cast<unsigned>(documents.count * documents.length);
  columns_kernel<PAD><<<rows, kPackingBlock, 0, stream>>>(documents, all);
  octet::cuda::check_launch("attention_backward");
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

void pad_columns(cudaStream_t stream, const PaddedDocuments& documents,
                 const std::array<PaddedColumns, kMostPaddedColumns>& arrays) {
  copy_columns<true>(stream, documents, arrays);
}

void unpad_columns(cudaStream_t stream, const PaddedDocuments& documents,
                   const std::array<PaddedColumns, kMostPaddedColumns>& arrays) {
  copy_columns<false>(stream, documents, arrays);
}

void pad_numbers(cudaStream_t stream, const PaddedDocuments& documents, const PaddedNumbers& args) {
  const std::int64_t items = documents.count * args.heads * documents.length;
  padded_numbers_kernel<<<packing_blocks(items), kPackingBlock, 0, stream>>>(documents, args);
  octet::cuda::check_launch("attention_backward");
}

}  // namespace octet::ops::cuda
