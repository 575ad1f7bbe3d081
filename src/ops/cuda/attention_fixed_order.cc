// In a fixed order cuDNN keeps sums of d_q for each stretch of keys, so that only a part of a micro-batch may
// fit the scratch at once.
#include "cuda/attention_fixed_order.h"

#include <algorithm>
#include <cstdint>
#include <optional>

#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

/// `data` from a document and a key head, with the query heads that it serves, on.
GraphData moved(const GraphShape& shape, const GraphData& data, std::int64_t document, std::int64_t kv_head) {
  const std::int64_t head = shape.heads.q_heads / shape.heads.kv_heads * kv_head;
  const std::int64_t token = document * shape.length;
  // Of an array of bf16 whose tokens are `ld` elements apart.
  const auto from = [&](auto* array, std::int64_t ld, std::int64_t at_head) {
    using Void = decltype(array);
    const auto* first =
        static_cast<const std::uint16_t*>(array) + token * ld + at_head * shape.heads.head_dim;
    return const_cast<Void>(static_cast<const void*>(first));
  };
  GraphData part = data;
  part.q = from(data.q, shape.qkv_ld, head);
  part.k = from(data.k, shape.qkv_ld, kv_head);
  part.v = from(data.v, shape.qkv_ld, kv_head);
  part.out = from(data.out, shape.out_ld, head);
  part.d_out = from(data.d_out, shape.d_out_ld, head);
  part.d_q = from(data.d_q, shape.d_q_ld, head);
  part.d_k = from(data.d_k, shape.d_kv_ld, kv_head);
  part.d_v = from(data.d_v, shape.d_kv_ld, kv_head);
  part.stats += (document * shape.heads.q_heads + head) * shape.length;
  return part;
}

std::int64_t largest_divisor(std::int64_t of, std::size_t at_most) {
  for (std::int64_t d = of; d > 1; --d) {
    if (of % d == 0 && static_cast<std::size_t>(d) <= at_most) return d;
  }
  return 1;
}

/// The part of a batch of documents of one length that a graph takes at once: some documents with all heads,
/// or one document with some key heads and the query heads that they serve.
struct Portion {
  std::int64_t documents = 1, kv_heads = 1;
};

GraphShape shape_of(const GraphShape& whole, const Portion& portion) {
  GraphShape shape = whole;
  shape.batch = portion.documents;
  shape.heads.q_heads = whole.heads.q_heads / whole.heads.kv_heads * portion.kv_heads;
  shape.heads.kv_heads = portion.kv_heads;
  return shape;
}

/// None when not even one key head of one document fits.
std::optional<Portion> portion_of(cudaStream_t stream, int device, const GraphShape& whole,
                                  std::size_t scratch_bytes) {
  const Portion least;
  const GraphShape least_shape = shape_of(whole, least);
  if (!graph_exists(stream, device, least_shape, scratch_bytes)) return std::nullopt;
  const std::size_t fit =
      scratch_bytes / std::max<std::size_t>(1, *graph_scratch(stream, device, least_shape));
  Portion portion{.documents = 1, .kv_heads = largest_divisor(whole.heads.kv_heads, fit)};
  if (portion.kv_heads == whole.heads.kv_heads) {
    portion.documents = largest_divisor(whole.batch, fit / static_cast<std::size_t>(portion.kv_heads));
  }
  const auto wanted = graph_scratch(stream, device, shape_of(whole, portion));
  return wanted && *wanted <= scratch_bytes ? portion : least;
}

}  // namespace

bool backward_in_fixed_order(cudaStream_t stream, int device, const GraphShape& whole, const GraphData& data,
                             std::size_t scratch_bytes) {
  const auto portion = portion_of(stream, device, whole, scratch_bytes);
  if (!portion) return false;
  const GraphShape shape = shape_of(whole, *portion);
  const std::size_t wanted = *graph_scratch(stream, device, shape);
  for (std::int64_t document = 0; document < whole.batch; document += portion->documents) {
    for (std::int64_t kv_head = 0; kv_head < whole.heads.kv_heads; kv_head += portion->kv_heads) {
      // Nothing promises that every sum is written before it is read, and what another shape left there may
      // be no number.
      octet::cuda::check(cudaMemsetAsync(data.scratch, 0, wanted, stream), "clearing sums of attention");
      run_graph(stream, device, shape, moved(whole, data, document, kv_head));
    }
  }
  return true;
}

}  // namespace octet::ops::cuda
