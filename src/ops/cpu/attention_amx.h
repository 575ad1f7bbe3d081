// bf16 attention on processors with AMX tiles. It uses the blocks of attention_tiles.h, multiplied in bf16
// with fp32 sums. Weights and score gradients are rounded to bf16 before they are multiplied, as in GPU
// kernels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octet/ops/attention.h"

namespace octet::ops::cpu {

/// Returns true if this process may use AMX tiles with bf16.
bool has_amx_bf16();

std::size_t amx_forward_scratch_bytes(const Heads& heads, std::int64_t max_length);
std::size_t amx_backward_scratch_bytes(const Heads& heads, std::int64_t max_length);

/// The part of attention that one thread computes.
struct AttentionTask {
  std::int64_t start = 0;  ///< first token of the document
  std::int64_t first = 0;  ///< queries [first, last) of the document; first is a multiple of 64
  std::int64_t last = 0;
  std::int64_t kv_head = 0;
  void* scratch = nullptr;  ///< 64-byte aligned
};
void amx_forward(const AttentionArgs& args, const AttentionTask& task);
/// `first` must be 0 and `last` the document's length: one thread sums the gradients of keys and values.
void amx_backward(const AttentionBackwardArgs& args, const AttentionTask& task);

}  // namespace octet::ops::cpu
