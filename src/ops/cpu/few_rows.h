// GEMMs of few tokens with a weight stored as [outputs, inner], for decoding. With one token the memory
// bandwidth of the weight is the bottleneck; from about 16 tokens on, the multiplications are. oneDNN copies
// or transposes the weight first, or reads it at half the memory bandwidth.
#pragma once

#include "octet/ops/gemm.h"

namespace octet::ops::cpu {

/// Returns whether few_rows() supports this GEMM and is faster than oneDNN. Requirements: forward, a constant
/// weight, fp32 or bf16 operands, and an inner dimension that is a multiple of 32. There are at most 64 rows
/// in fp32 and 512 in bf16 (8 if the processor has bf16 tiles). Only on a decoder's stream (cpu::claims()):
/// evaluation during training must have the same sums as the training steps.
bool suits_few_rows(const GemmArgs& args);

/// D = A · Bᵀ (times args.factor, plus args.bias) in fp32, rounded once. The inner dimension alone determines
/// the order of each sum: a row's bits depend neither on other rows nor on the number of threads. Ignores
/// args.addend and args.workspace.
void few_rows(const GemmArgs& args);

/// Keys that are read in order before their scores are used.
inline constexpr std::int64_t kCachedPiece = 64;

/// Keys, or values, of a piece of a sequence's cache, for one token and some adjacent KV heads.
struct CachedPiece {
  const void* data = nullptr;          ///< [rows][..], starts at the first KV head
  const std::int64_t* rows = nullptr;  ///< [count]
  std::int64_t stride = 0;             ///< elements from one row to the next
  std::int64_t count = 0;              ///< at most kCachedPiece
  std::int64_t kv_heads = 0, group = 1,
               head_dim = 0;       ///< group: query heads per KV head; head_dim: a multiple of 32
  const float* queries = nullptr;  ///< [kv_heads * group][head_dim], for bf16 in the order of few_pack
  float* scores = nullptr;         ///< [kv_heads * group][kCachedPiece]
  float* sums = nullptr;           ///< [kv_heads * group][head_dim], in the order of the queries
};

/// Kernels of decoding attention on a piece, for this processor's vectors.
struct CachedKernels {
  void (*scores)(const CachedPiece&, bool bf16);      ///< computes scores from keys
  void (*add_values)(const CachedPiece&, bool bf16);  ///< adds values, weighted by scores, to sums
  void (*pack)(const Bf16* from, std::int64_t count,
               float* to);  ///< bf16 values; separates even and odd elements of a step
  void (*unpack)(const float* from, std::int64_t count, float* to);  ///< inverse; arrays must not overlap
};
const CachedKernels& cached_kernels();

}  // namespace octet::ops::cpu
