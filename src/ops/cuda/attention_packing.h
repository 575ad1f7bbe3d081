// What cuDNN wants to know about packed documents, written by the device from cu_seqlens.
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

}  // namespace octet::ops::cuda
