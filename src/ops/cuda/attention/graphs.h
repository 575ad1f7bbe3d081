// cuDNN graphs of attention: built once per shape, cached, and run. Only graphs.cc uses cudnn-frontend.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <optional>

#include "octet/ops/attention.h"

namespace octet::ops::cuda {

/// The properties of a graph. There are `batch` documents. Each has `length` tokens, or, if `packed`, at most
/// `length` tokens (lengths and offsets are in device memory).
struct GraphShape {
  bool backward = false;
  bool fixed_order = false;  ///< backward: equal inputs give equal bits
  bool packed = false;
  bool stats = true;
  std::int64_t batch = 0, length = 0;
  std::int64_t most_tokens = 0;  ///< packed: total of all documents
  Heads heads;
  std::int64_t qkv_ld = 0, out_ld = 0, d_out_ld = 0;
  std::int64_t d_q_ld = 0, d_kv_ld = 0;  ///< elements between the tokens of d_q, and of d_k and d_v
  float scale = 1.0f;
  std::int64_t window = 0;  ///< 0: no window
};

/// Device memory of one run. Arrays are bf16, except stats, lengths and offsets.
struct GraphData {
  const void *q = nullptr, *k = nullptr, *v = nullptr;
  void* out = nullptr;
  float* stats = nullptr;
  const void* d_out = nullptr;
  void *d_q = nullptr, *d_k = nullptr, *d_v = nullptr;
  std::int32_t* lengths = nullptr;
  std::int64_t *qkv_offsets = nullptr, *out_offsets = nullptr, *d_out_offsets = nullptr,
               *stats_offsets = nullptr, *d_q_offsets = nullptr, *d_kv_offsets = nullptr;
  void* scratch = nullptr;
  std::size_t scratch_bytes = 0;
};

/// Returns the bytes of scratch of this graph. Returns nothing if cuDNN cannot be loaded or does not build
/// the graph. The first call for a shape takes a second.
std::optional<std::size_t> graph_scratch(cudaStream_t stream, int device, const GraphShape& shape);
/// True if the graph exists and needs at most `scratch_bytes`. A lack of scratch is logged once.
bool graph_exists(cudaStream_t stream, int device, const GraphShape& shape, std::size_t scratch_bytes);
/// Enqueues a graph. Requires graph_exists().
void run_graph(cudaStream_t stream, int device, const GraphShape& shape, const GraphData& data);

}  // namespace octet::ops::cuda
