// Descriptions of packed documents for cuDNN, written by the device from cu_seqlens, and copies of documents
// to separate padded rows.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace octet::ops::cuda {

/// Number of arrays with the same tokens, but different numbers of elements per token.
inline constexpr int kOffsetArrays = 6;

/// Lengths [padded] and, for each array, the offset [padded + 1] of the first element of each document.
/// Documents from `count` on are empty.
struct PackedDocuments {
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::int64_t step = 0;  ///< elements between two arrays of offsets, greater than `padded`
  std::array<std::int64_t, kOffsetArrays> elements_a_token{};
  std::int32_t* lengths = nullptr;
  std::int64_t* offsets = nullptr;  ///< [kOffsetArrays, step]
};
void describe_documents(cudaStream_t stream, const PackedDocuments& args);

/// One number per token and head, in our layout [heads, tokens] and cuDNN's layout [used / length, heads,
/// length] (length 0: [used, heads]). In our layout, tokens from `used` on become zero.
struct HeadNumbers {
  float* ours = nullptr;
  float* theirs = nullptr;
  std::int64_t heads = 0, tokens = 0, used = 0, length = 0;
};
void numbers_to_ours(cudaStream_t stream, const HeadNumbers& args);
void numbers_to_theirs(cudaStream_t stream, const HeadNumbers& args);

/// Consecutive documents that start `length` rows apart in copies. The padded row of a token is document *
/// length + token, counted in the document.
struct PaddedDocuments {
  const std::int32_t* cu_seqlens = nullptr;  ///< device, [count + 1], from the first of these documents
  std::int64_t count = 0;
  std::int64_t length = 0;  ///< at least the length of the longest document
};

/// Columns of a bf16 array and their copy. All sizes are multiples of eight elements.
struct PaddedColumns {
  void* ours = nullptr;    ///< rows are tokens of the micro-batch
  void* padded = nullptr;  ///< [count * length] rows
  std::int64_t ours_ld = 0, padded_ld = 0;
  std::int64_t cols = 0;
};

inline constexpr int kMostPaddedColumns = 5;

/// Copies to `padded`, with zeros after the end of each document.
void pad_columns(cudaStream_t stream, const PaddedDocuments& documents,
                 const std::array<PaddedColumns, kMostPaddedColumns>& arrays);
/// Copies the tokens of documents to `ours`. Arrays without columns are skipped.
void unpad_columns(cudaStream_t stream, const PaddedDocuments& documents,
                   const std::array<PaddedColumns, kMostPaddedColumns>& arrays);

/// One number per token and head, copied from [heads, tokens] to padded [count, heads, length], with zeros
/// after the end of each document.
struct PaddedNumbers {
  const float* ours = nullptr;
  float* padded = nullptr;
  std::int64_t heads = 0, tokens = 0;
};
void pad_numbers(cudaStream_t stream, const PaddedDocuments& documents, const PaddedNumbers& args);

}  // namespace octet::ops::cuda
