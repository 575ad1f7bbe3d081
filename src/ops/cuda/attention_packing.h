// What cuDNN wants to know about packed documents, written by the device from cu_seqlens.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>

namespace octet::ops::cuda {

/// Arrays that begin at the same tokens and differ in elements a token.
inline constexpr int kOffsetArrays = 6;

/// Rows of what backward writes begin anew at multiples of this for each document: cuDNN's kernels write
/// whole tiles of rows, and where documents touch, the tail of one tile would fall on the next document's
/// rows.
inline constexpr std::int64_t kTileRows = 128;

/// Lengths [padded] and, for each array, the offset [padded + 1] of each document's first element; documents
/// from `count` on are empty.
struct PackedDocuments {
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t count = 0;
  std::int64_t padded = 0;
  std::int64_t step = 0;  ///< elements between two arrays of offsets, above padded
  std::array<std::int64_t, kOffsetArrays> elements_a_token{};
  std::array<bool, kOffsetArrays> apart{};  ///< documents begin at multiples of kTileRows
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

/// Rows of documents between dense arrays and ones whose documents stand apart.
struct ApartRows {
  const std::int32_t* cu_seqlens = nullptr;
  std::int64_t count = 0;                ///< documents
  std::int64_t tokens = 0;               ///< of documents
  const std::int64_t* starts = nullptr;  ///< [count] offsets of an array that stands apart …
  std::int64_t unit = 1;                 ///< … in so many elements a row
};
/// apart[row, head] = ours[head, token]; ours has `stride` numbers a head.
void numbers_apart(cudaStream_t stream, const ApartRows& rows, const float* ours, std::int64_t stride,
                   std::int64_t heads, float* apart);
/// One array of bf16 rows: dense, of `width` elements (a multiple of 8), into rows `ld` elements apart.
struct ApartCopy {
  const void* apart = nullptr;
  void* to = nullptr;
  std::int64_t width = 0;
};
/// Copies the rows of three arrays (d_q, d_k, d_v) to their tokens, all into rows `ld` elements apart.
void copy_from_apart(cudaStream_t stream, const ApartRows& rows, const std::array<ApartCopy, 3>& arrays,
                     std::int64_t ld);

}  // namespace octet::ops::cuda
