// What cuDNN wants to know about packed documents, written by the device from cu_seqlens, and copies that set
// them apart.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace octet::ops::cuda {

/// Arrays that begin at the same tokens and differ in elements a token.
inline constexpr int kOffsetArrays = 6;

/// Lengths [padded] and, for each array, the offset [padded + 1] of each document's first element; documents
/// from `count` on are empty.
struct PackedDocuments {
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::int64_t step = 0;  ///< elements between two arrays of offsets, above padded
  std::array<std::int64_t, kOffsetArrays> elements_a_token{};
  std::int32_t* lengths = nullptr;
  std::int64_t* offsets = nullptr;  ///< [kOffsetArrays, step]
};
void describe_documents(cudaStream_t stream, const PackedDocuments& args);

/// One number a token and head, between ours [heads, tokens] and cuDNN's [used / length, heads, length]
/// (length 0: [used, heads]); tokens from `used` on become zero in ours.
struct HeadNumbers {
  float* ours = nullptr;
  float* theirs = nullptr;
  std::int64_t heads = 0, tokens = 0, used = 0, length = 0;
};
void numbers_to_ours(cudaStream_t stream, const HeadNumbers& args);
void numbers_to_theirs(cudaStream_t stream, const HeadNumbers& args);

/// Consecutive documents that lie apart by `length` rows each in copies: theirs is row
/// document * length + token of the document.
struct PaddedDocuments {
  const std::int32_t* cu_seqlens = nullptr;  ///< device, [count + 1], from the first of them on
  std::int64_t count = 0;
  std::int64_t length = 0;  ///< of the longest or more
};

/// Columns of an array of bf16 and their copy; all in multiples of eight elements.
struct PaddedColumns {
  void* ours = nullptr;    ///< rows are tokens of the micro-batch
  void* padded = nullptr;  ///< [count * length] rows
  std::int64_t ours_ld = 0, padded_ld = 0;
  std::int64_t cols = 0;
};

inline constexpr int kMostPaddedColumns = 5;

/// Copies to `padded`, with zeros past each document's end.
void pad_columns(cudaStream_t stream, const PaddedDocuments& documents,
                 const std::array<PaddedColumns, kMostPaddedColumns>& arrays);
/// Copies to `ours` what belongs to documents. Arrays without columns are left out.
void unpad_columns(cudaStream_t stream, const PaddedDocuments& documents,
                   const std::array<PaddedColumns, kMostPaddedColumns>& arrays);

/// One number a token and head, from ours [heads, tokens] to padded [count, heads, length], with zeros past
/// each document's end.
struct PaddedNumbers {
  const float* ours = nullptr;
  float* padded = nullptr;
  std::int64_t heads = 0, tokens = 0;
};
void pad_numbers(cudaStream_t stream, const PaddedDocuments& documents, const PaddedNumbers& args);

}  // namespace octet::ops::cuda
