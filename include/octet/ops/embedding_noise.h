#pragma once

#include <cstdint>

#include "octet/ops/types.h"

namespace octet::ops {

/// x[t, j] += alpha / sqrt(length * cols) * u, in place (NEFTune: Jain et al. 2023, arXiv:2310.05914).
/// `length` is the number of tokens of the document of t. u is uniform in [-1, 1), and depends only on
/// names[t] and j. Philox4x32-7 of counter (names[t], j / 4) gives four numbers; number j % 4 is u. The CPU
/// and the GPU add the same numbers.
struct EmbeddingNoiseArgs {
  Matrix x;                              ///< [tokens, cols] T
  const std::uint64_t* names = nullptr;  ///< [tokens], device
  const std::int32_t* cu_seqlens =
      nullptr;  ///< [documents + 1], device: first tokens of documents, ascending
  std::int64_t documents = 0;
  float alpha = 0.0f;  ///< at least 0
};
void embedding_noise(Stream& stream, const EmbeddingNoiseArgs& args);

}  // namespace octet::ops
