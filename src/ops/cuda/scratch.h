// Scratch sizes of the CUDA side. Part of every build, because plans for a GPU are made on machines without
// one.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "octet/base/error.h"
#include "octet/ops/attention.h"
#include "octet/ops/gemm.h"

namespace octet::ops::cuda {

inline constexpr std::size_t aligned(std::size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// --- GEMMs ---------------------------------------------------------------------------------------------

/// Scratch of cuBLASLt for any shape: NVIDIA's recommendation for Hopper.
inline constexpr std::size_t kLibraryWorkspace = std::size_t{32} << 20;
/// Maximum bytes of a piece of operand copies.
inline constexpr std::size_t kMostCopied = std::size_t{64} << 20;
inline constexpr std::size_t kSlack = 512;        ///< for the alignment of the second copy
inline constexpr std::size_t kScalarBytes = 256;  ///< GemmScalars
/// FP8 GEMMs read multiples of this number of elements.
inline constexpr std::int64_t kUnit = 16;

inline std::int64_t filled(std::int64_t count) {
  return (count + kUnit - 1) / kUnit * kUnit;
}

inline std::size_t bias_bytes(const GemmArgs& args) {
  const bool rounded = args.gemm_kind == GemmKind::forward && args.d.dtype == DType::bf16;
  return rounded ? aligned(2 * static_cast<std::size_t>(args.d.cols)) : 0;
}

/// Returns the bytes for copies of both operands, whole or in pieces. It also suffices for GEMMs with fewer
/// rows.
inline std::size_t copy_bytes(const GemmArgs& args) {
  if (!is_fp8(args.a.dtype)) return 0;
  const auto whole = [](const Operand& x) {
    return aligned(2 * static_cast<std::size_t>(filled(x.rows) * filled(x.cols)));
  };
  return std::min(kMostCopied, whole(args.a) + whole(args.b)) + kSlack;
}

inline std::size_t gemm_workspace(const GemmArgs& args) {
  return kScalarBytes + bias_bytes(args) + copy_bytes(args) + kLibraryWorkspace;
}

// --- attention -----------------------------------------------------------------------------------------

/// Scratch of this project's backward kernels.
inline std::size_t delta_bytes(const Heads& heads, std::int64_t tokens) {
  return aligned(static_cast<std::size_t>(heads.q_heads * tokens) * sizeof(float));
}

/// Tokens of packed documents are rounded up to multiples of this number, so that few graphs serve all
/// micro-batches of a run.
inline constexpr std::int64_t kTokenStep = 4096;
inline constexpr std::size_t kEngineScratch = std::size_t{32} << 20;
inline constexpr std::size_t kDescriptionBytes = std::size_t{1} << 16;

inline std::int64_t rounded_up(std::int64_t tokens) {
  return (tokens + kTokenStep - 1) / kTokenStep * kTokenStep;
}

/// Bytes of conversions between our layout and cuDNN's in backward of packed documents.
struct AttentionSizes {
  std::size_t stats, gradients;
};

inline AttentionSizes attention_sizes(const Heads& heads, std::int64_t tokens) {
  const auto count = static_cast<std::size_t>(tokens);
  return {.stats = aligned(count * static_cast<std::size_t>(heads.q_heads) * sizeof(float)),
          .gradients = aligned(count * static_cast<std::size_t>(2 * heads.kv_heads * heads.head_dim) * 2)};
}

/// The widest heads of the kernels.
inline constexpr std::int64_t kMostHeadDim = 256;
/// Throws if no kernel has heads of this width.
inline void check_head_dim(const Heads& heads) {
  if (heads.head_dim <= kMostHeadDim) return;
  throw Error(Problem{.what = "attention on the GPU has no kernel for heads of this width",
                      .expected = "a head_dim of at most " + std::to_string(kMostHeadDim),
                      .found = std::to_string(heads.head_dim),
                      .fix = "set device: cpu",
                      .code = ExitCode::usage});
}

/// Scratch of cuDNN itself.
inline std::size_t cudnn_scratch(const Heads& heads, std::int64_t tokens) {
  // Backward stores sums of d_q with the row pitch of q, d_k and d_v of every query head, and two numbers per
  // query. All are counted in fp32.
  const auto sums =
      static_cast<std::size_t>(heads.qkv_width() + 2 * heads.q_heads * (heads.head_dim + 1)) * sizeof(float);
  return static_cast<std::size_t>(rounded_up(tokens)) * sums + kEngineScratch;
}

inline std::size_t cudnn_attention_workspace(const Heads& heads, std::int64_t tokens) {
  const AttentionSizes sizes = attention_sizes(heads, tokens);
  return kDescriptionBytes + sizes.stats + sizes.gradients + cudnn_scratch(heads, tokens);
}

inline std::size_t attention_workspace(const Heads& heads, DType dtype, std::int64_t tokens) {
  const std::size_t own = delta_bytes(heads, tokens);
  return dtype == DType::bf16 ? std::max(own, cudnn_attention_workspace(heads, tokens)) : own;
}

/// Forward in a fixed order: the document and position of each token.
inline std::size_t attention_in_order_workspace(std::int64_t tokens) {
  return aligned(2 * static_cast<std::size_t>(tokens) * sizeof(std::int32_t));
}

/// Minimum number of keys per piece of a long cache, and maximum number of pieces. With many decoded tokens,
/// pieces are joined.
inline constexpr std::int64_t kCachePiece = 256, kMostCachePieces = 64;

inline std::int64_t cache_piece(std::int64_t capacity) {
  const std::int64_t least = (capacity + kMostCachePieces - 1) / kMostCachePieces;
  return std::max(kCachePiece, (least + 63) / 64 * 64);
}
inline int cache_pieces(std::int64_t capacity) {
  const std::int64_t piece = cache_piece(capacity);
  return static_cast<int>((capacity + piece - 1) / piece);
}
/// Bytes of a single token's partial results of all pieces: sums of values, and two numbers each.
inline std::size_t cached_row_bytes(const Heads& heads, std::int64_t capacity) {
  return static_cast<std::size_t>(heads.q_heads * cache_pieces(capacity) * (heads.head_dim + 2)) *
         sizeof(float);
}
/// Maximum bytes of partial results of a launch. More tokens need several launches.
inline constexpr std::size_t kMostCachedRows = std::size_t{64} << 20;

inline std::size_t cached_attention_workspace(const Heads& heads, std::int64_t tokens,
                                              std::int64_t capacity) {
  if (cache_pieces(capacity) == 1 || tokens == 0) return 0;
  const std::size_t row = cached_row_bytes(heads, capacity);
  return aligned(std::max(row, std::min(kMostCachedRows, row * static_cast<std::size_t>(tokens))));
}

// --- norms ---------------------------------------------------------------------------------------------

/// Rows per block of the backward pass. The share of a block in d_weight is one partial sum. The number of
/// rows is the smallest that fills the multiprocessors of a Hopper GPU with two blocks of 512 threads each,
/// or more smaller blocks.
inline std::int64_t norm_backward_block(std::int64_t rows, std::int64_t hidden) {
  constexpr std::int64_t blocks_of_512 = 264, fewest = 4;
  const std::int64_t threads = (hidden + 255) / 256 * 32;
  const std::int64_t blocks = blocks_of_512 * std::max<std::int64_t>(1, 512 / threads);
  return std::max(fewest, (rows + blocks - 1) / blocks);
}

}  // namespace octet::ops::cuda
