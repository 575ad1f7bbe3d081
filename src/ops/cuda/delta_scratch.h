// Scratch sizes of the CUDA side of the gated delta rule. Part of every build, because plans for a GPU are
// made on machines without one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "octet/ops/delta_inputs.h"

namespace octet::ops::cuda {

/// Bytes of the numbers of a token and value head that all kernels of a chunk read.
inline constexpr std::size_t kDeltaTokenBytes = 32;

/// Arrays of a micro-batch that the kernels of a chunk share, and their places in the workspace. The part of
/// a chunk begins at its first token. It has [value_heads, tokens of the chunk] rows.
struct DeltaScratch {
  std::size_t inverse;   ///< [tokens, value_heads, kDeltaChunk] T
  std::size_t scores;    ///< [tokens, value_heads, kDeltaChunk] T
  std::size_t d_states;  ///< [delta_states(tokens), value_heads, key_dim, value_dim] T: gradients of states
  std::size_t bytes;
};

inline DeltaScratch delta_scratch(const DeltaHeads& heads, DType dtype, std::int64_t tokens) {
  const auto padded = [](std::int64_t count, std::size_t element) {
    return (static_cast<std::size_t>(count) * element + 255) / 256 * 256;
  };
  const std::int64_t rows = tokens * heads.value_heads;
  const std::size_t squares = padded(rows * kDeltaChunk, size_of(dtype));
  const std::int64_t state = heads.value_heads * heads.key_dim * heads.value_dim;
  DeltaScratch s{};
  s.inverse = padded(rows, kDeltaTokenBytes);  // after the numbers of tokens
  s.scores = s.inverse + squares;
  s.d_states = s.scores + squares;
  s.bytes = s.d_states + padded(delta_states(tokens) * state, size_of(dtype));
  return s;
}

/// Tokens that delta_inputs_backward() adds to one partial sum. There are at most 124 partial sums. With
/// 8,192 channels, their blocks fill four waves on 132 multiprocessors.
inline std::int64_t delta_inputs_block(std::int64_t tokens) {
  return std::max<std::int64_t>(32, (tokens + 123) / 124);
}
inline std::size_t delta_inputs_workspace(const DeltaColumns& columns, std::int64_t tokens) {
  const std::int64_t block = delta_inputs_block(tokens);
  const std::int64_t sums = columns.heads.qkv_width() * kDeltaTaps + 2 * columns.heads.value_heads;
  return static_cast<std::size_t>((tokens + block - 1) / block * sums) * sizeof(float);
}

/// Tokens that gated_norm_backward() adds to one partial sum. There are at most 396 partial sums. A block
/// computes each, and 132 multiprocessors run three blocks at a time.
inline std::int64_t gated_norm_block(std::int64_t tokens) {
  return std::max<std::int64_t>(4, (tokens + 395) / 396);
}
inline std::size_t gated_norm_workspace(const DeltaHeads& heads, std::int64_t tokens) {
  const std::int64_t block = gated_norm_block(tokens);
  return static_cast<std::size_t>((tokens + block - 1) / block * heads.value_dim) * sizeof(float);
}

}  // namespace octet::ops::cuda
