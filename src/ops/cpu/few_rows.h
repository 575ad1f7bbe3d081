// Products of few tokens with a weight that lies in memory once for each output, as decoding makes them:
// bound by reading the weight where there is one token, by multiplications from about 16 on. The library
// copies or turns the weight first, or reads it with half of the memory's speed.
#pragma once

#include "octet/ops/gemm.h"

namespace octet::ops::cpu {

/// Whether few_rows() makes this product, and faster than the library: forward, a weight that stands, fp32 or
/// bf16 operands, at most 64 rows in fp32 and 512 in bf16 (8 where the processor multiplies tiles of bf16),
/// an inner dimension in whole steps of 32. Only on the stream of a decoder (cpu::claims()): what looks at a
/// model in training has the sums of its steps.
bool suits_few_rows(const GemmArgs& args);

/// D = A · Bᵀ (times args.factor, plus args.bias) in fp32, rounded once. Each sum has an order that the inner
/// dimension alone decides: a row's bits depend neither on the rows beside it nor on the number of threads.
/// args.addend and args.workspace are not looked at.
void few_rows(const GemmArgs& args);

/// Keys that are read one after the other before their scores are used.
inline constexpr std::int64_t kCachedPiece = 64;

/// Keys, or values, of a piece of a sequence's cache, for some KV heads that lie side by side and one token.
struct CachedPiece {
  const void* data = nullptr;          ///< [rows][..], of the first KV head
  const std::int64_t* rows = nullptr;  ///< [count]
  std::int64_t stride = 0;             ///< elements from one row to the next
  std::int64_t count = 0;              ///< at most kCachedPiece
  std::int64_t kv_heads = 0, group = 1,
               head_dim = 0;       ///< query heads of a KV head; head_dim in whole steps of 32
  const float* queries = nullptr;  ///< [kv_heads * group][head_dim], beside bf16 in the order of few_pack
  float* scores = nullptr;         ///< [kv_heads * group][kCachedPiece]
  float* sums = nullptr;           ///< [kv_heads * group][head_dim], ordered as the queries
};

/// What attention of decoding computes of a piece, by the vectors of this processor.
struct CachedKernels {
  void (*scores)(const CachedPiece&, bool bf16);      ///< of keys
  void (*add_values)(const CachedPiece&, bool bf16);  ///< to sums, by scores
  void (*pack)(const Bf16* from, std::int64_t count,
               float* to);  ///< bf16 values, even and odd ones of a step apart
  void (*unpack)(const float* from, std::int64_t count, float* to);  ///< back; apart from `from`
};
const CachedKernels& cached_kernels();

}  // namespace octet::ops::cpu
