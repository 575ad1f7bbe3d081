// Converts a micro-batch of documents to the arguments of cuDNN's graphs. Documents of one length form a
// batch. Other documents are packed. Their number, maximum length and total length are rounded up, so that
// few graphs serve all micro-batches of a run. Backward in a fixed order runs in portions and separates
// packed documents, because cuDNN 9.19 returned NaN for some packed documents.
#include "cuda/attention/cudnn.h"

#include <algorithm>
#include <bit>
#include <mutex>

#include "cuda/attention/fixed_order.h"
#include "cuda/attention/graphs.h"
#include "cuda/attention/packing.h"
#include "cuda/scratch.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

namespace {

constexpr std::int64_t kMostDocuments = 1024;
/// Elements between arrays of offsets. cuDNN requires each array to be aligned to 16 bytes.
constexpr std::int64_t kOffsetStep = kMostDocuments + 2;
static_assert(kOffsetStep * 8 * kOffsetArrays + kMostDocuments * 4 <= std::int64_t{kDescriptionBytes});

std::int64_t power_of_two(std::int64_t x) {
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(x)));
}

bool fits_vectors(const void* data, std::int64_t ld) {
  return reinterpret_cast<std::uintptr_t>(data) % 16 == 0 && ld % 8 == 0;
}

/// The layout of the workspace.
struct Room {
  std::int64_t* offsets = nullptr;
  std::int32_t* lengths = nullptr;
  float* stats = nullptr;
  std::uint8_t* gradients = nullptr;  ///< of packed documents: d_k, d_v
  void* scratch = nullptr;
  std::size_t scratch_bytes = 0;
};

Room room_of(const Workspace& workspace, const Heads& heads, std::int64_t tokens) {
  check(workspace.bytes >= cudnn_attention_workspace(heads, tokens),
        "attention: the workspace holds attention_workspace bytes");
  const AttentionSizes sizes = attention_sizes(heads, tokens);
  auto* at = static_cast<std::uint8_t*>(workspace.data);
  Room room{.offsets = reinterpret_cast<std::int64_t*>(at),
            .lengths = reinterpret_cast<std::int32_t*>(at + kDescriptionBytes) - kMostDocuments};
  at += kDescriptionBytes;
  room.stats = reinterpret_cast<float*>(at);
  at += sizes.stats;
  room.gradients = at;
  at += sizes.gradients;
  room.scratch = at;
  room.scratch_bytes = workspace.bytes - (kDescriptionBytes + sizes.stats + sizes.gradients);
  return room;
}

/// The documents in the form of a graph.
struct Packing {
  bool possible = false;
  bool packed = false;
  std::int64_t batch = 0, length = 0;
  std::int64_t used = 0;  ///< tokens of documents
};

Packing packing_of(const Documents& documents) {
  Packing p;
  if (documents.host_cu_seqlens == nullptr || documents.count == 0) return p;
  const std::int32_t* starts = documents.host_cu_seqlens;
  p.used = starts[documents.count];
  const std::int64_t first = starts[1] - starts[0];
  bool equal = true;
  for (std::int64_t d = 0; d < documents.count; ++d) {
    const std::int64_t length = starts[d + 1] - starts[d];
    p.length = std::max(p.length, length);
    equal = equal && length == first;
  }
  p.packed = !equal;
  p.batch = documents.count;
  if (p.packed) {
    p.batch = power_of_two(p.batch);
    p.length = std::max<std::int64_t>(128, power_of_two(p.length));
  }
  p.possible = p.used > 0 && p.length > 1 && p.batch <= kMostDocuments;
  return p;
}

/// True if cuDNN may support the call.
template <typename Args>
bool suits(const Args& args, const Packing& packing) {
  return packing.possible && args.qkv.dtype == DType::bf16 && args.soft_cap == 0.0f &&
         args.heads.head_dim % 8 == 0 && args.heads.head_dim <= 256 &&
         fits_vectors(args.qkv.data, args.qkv.ld) && fits_vectors(args.out.data, args.out.ld);
}

template <typename Args>
GraphShape shape_of(const Args& args, const Packing& packing) {
  return {.packed = packing.packed,
          .batch = packing.batch,
          .length = packing.length,
          .most_tokens = packing.packed ? rounded_up(args.qkv.rows) : 0,
          .heads = args.heads,
          .qkv_ld = args.qkv.ld,
          .out_ld = args.out.ld,
          .scale = args.scale,
          // A window as wide as the longest document has no effect.
          .window = args.window < packing.length ? args.window : 0};
}

template <typename Args>
GraphData data_of(const Args& args, const Room& room) {
  const auto* q = static_cast<const std::uint16_t*>(args.qkv.data);
  const auto* k = q + args.heads.q_heads * args.heads.head_dim;
  return {.q = q,
          .k = k,
          .v = k + args.heads.kv_heads * args.heads.head_dim,
          .stats = room.stats,
          .lengths = room.lengths,
          .scratch = room.scratch,
          .scratch_bytes = room.scratch_bytes};
}

/// Writes lengths and offsets of packed documents and sets the pointers of the graph.
void describe(cudaStream_t stream, const Documents& documents, const GraphShape& shape, const Room& room,
              GraphData& data) {
  if (!shape.packed) return;
  describe_documents(stream, {.cu_seqlens = documents.cu_seqlens,
                              .count = documents.count,
                              .padded = shape.batch,
                              .step = kOffsetStep,
                              .elements_a_token = {shape.qkv_ld, shape.out_ld, shape.d_out_ld,
                                                   shape.heads.q_heads, shape.d_q_ld, shape.d_kv_ld},
                              .lengths = room.lengths,
                              .offsets = room.offsets});
  constexpr std::int64_t step = kOffsetStep;
  data.qkv_offsets = room.offsets;
  data.out_offsets = room.offsets + step;
  data.d_out_offsets = room.offsets + 2 * step;
  data.stats_offsets = room.offsets + 3 * step;
  data.d_q_offsets = room.offsets + 4 * step;
  data.d_kv_offsets = room.offsets + 5 * step;
}

/// For a single document, cuDNN's layout of one number per query equals ours.
bool takes_lse(const GraphShape& shape, const Packing& packing, std::int64_t tokens, const float* lse) {
  return !shape.packed && shape.batch == 1 && packing.used == tokens &&
         reinterpret_cast<std::uintptr_t>(lse) % 16 == 0;
}

void say_own_kernels_once() {
  static std::once_flag said;
  std::call_once(said, [] {
    log::warn(
        "attention runs on much slower kernels for micro-batches with documents of different lengths: with "
        "deterministic: true, cuDNN needs more scratch memory for one of them than is reserved");
  });
}

/// Sets the rows of tokens without a document to zero.
void clear_rows(cudaStream_t stream, const Matrix& x, std::int64_t from) {
  if (from >= x.rows) return;
  auto* to = static_cast<std::uint16_t*>(x.data) + from * x.ld;
  octet::cuda::check(
      cudaMemset2DAsync(to, static_cast<std::size_t>(x.ld) * 2, 0, static_cast<std::size_t>(x.cols) * 2,
                        static_cast<std::size_t>(x.rows - from), stream),
      "clearing rows");
}

/// Copies dense bf16 [rows, cols] to rows of a wider array.
void place(cudaStream_t stream, void* to, std::int64_t ld, const void* from, std::int64_t rows,
           std::int64_t cols) {
  const auto row = static_cast<std::size_t>(cols) * 2;
  octet::cuda::check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(ld) * 2, from, row, row,
                                       static_cast<std::size_t>(rows), cudaMemcpyDeviceToDevice, stream),
                     "copying gradients of attention");
}

/// Sets the graph pointers for the inputs of backward and for d_qkv.
GraphData backward_data_of(const AttentionBackwardArgs& args, const Room& room) {
  GraphData data = data_of(args, room);
  data.out = const_cast<void*>(args.out.data);
  data.d_out = args.d_out.data;
  auto* d_q = static_cast<std::uint16_t*>(args.d_qkv.data);
  auto* d_k = d_q + args.heads.q_heads * args.heads.head_dim;
  data.d_q = d_q;
  data.d_k = d_k;
  data.d_v = d_k + args.heads.kv_heads * args.heads.head_dim;
  return data;
}

/// Enqueues backward of packed documents in a fixed order and returns true, or enqueues nothing and returns
/// false.
bool packed_in_fixed_order(cudaStream_t stream, int device, const AttentionBackwardArgs& args,
                           GraphShape shape) {
  shape.packed = false;
  shape.batch = 1;
  shape.length = args.qkv.rows;
  shape.most_tokens = 0;
  shape.d_q_ld = shape.d_kv_ld = args.d_qkv.ld;
  const Room room = room_of(args.workspace, args.heads, args.qkv.rows);
  const AttentionSizes sizes = attention_sizes(args.heads, args.qkv.rows);
  GraphData data = backward_data_of(args, room);
  data.stats = const_cast<float*>(args.lse);
  // Other users of the workspace must not affect the bits. All of it is free except the description.
  data.scratch = room.stats;
  data.scratch_bytes = sizes.stats + sizes.gradients + cudnn_scratch(args.heads, args.qkv.rows);
  return packed_backward_in_fixed_order(stream, device,
                                        {.whole = shape, .data = data, .documents = args.documents});
}

}  // namespace

bool cudnn_attention(cudaStream_t stream, int device, const AttentionArgs& args) {
  const Packing packing = packing_of(args.documents);
  if (!suits(args, packing)) return false;
  GraphShape shape = shape_of(args, packing);
  shape.stats = args.lse != nullptr;
  shape.most_tokens = 0;  // no effect on forward
  const Room room = room_of(args.workspace, args.heads, args.qkv.rows);
  if (!graph_exists(stream, device, shape, room.scratch_bytes)) return false;
  GraphData data = data_of(args, room);
  data.out = args.out.data;
  const bool in_place = takes_lse(shape, packing, args.qkv.rows, args.lse);
  if (in_place) data.stats = args.lse;
  describe(stream, args.documents, shape, room, data);
  run_graph(stream, device, shape, data);
  if (args.lse != nullptr && !in_place) {
    numbers_to_ours(stream, {.ours = args.lse,
                             .theirs = room.stats,
                             .heads = args.heads.q_heads,
                             .tokens = args.qkv.rows,
                             .used = packing.used,
                             .length = shape.packed ? 0 : shape.length});
  }
  clear_rows(stream, args.out, packing.used);
  return true;
}

bool cudnn_attention_backward(cudaStream_t stream, int device, const AttentionBackwardArgs& args,
                              bool fixed_order) {
  const Packing packing = packing_of(args.documents);
  if (!suits(args, packing) || !fits_vectors(args.d_out.data, args.d_out.ld) ||
      !fits_vectors(args.d_qkv.data, args.d_qkv.ld)) {
    return false;
  }
  const std::int64_t kv_width = args.heads.kv_heads * args.heads.head_dim;
  GraphShape shape = shape_of(args, packing);
  shape.backward = true;
  shape.fixed_order = fixed_order;
  shape.d_out_ld = args.d_out.ld;
  if (fixed_order && packing.packed) {
    const bool enqueued = packed_in_fixed_order(stream, device, args, shape);
    if (enqueued) {
      clear_rows(stream, args.d_qkv, packing.used);
    } else {
      say_own_kernels_once();
    }
    return enqueued;
  }
  // For packed documents, cuDNN writes d_q with the offsets of q, whatever offsets are set for d_q. Its
  // scratch holds rows of d_k and d_v for each query head, so their pitch must not be that of d_qkv.
  if (shape.packed && args.d_qkv.ld != args.qkv.ld) return false;
  shape.d_q_ld = args.d_qkv.ld;
  shape.d_kv_ld = shape.packed ? kv_width : args.d_qkv.ld;
  const Room room = room_of(args.workspace, args.heads, args.qkv.rows);
  if (!fixed_order && !graph_exists(stream, device, shape, room.scratch_bytes)) return false;
  GraphData data = backward_data_of(args, room);
  void* const d_k = data.d_k;
  void* const d_v = data.d_v;
  auto* packed_d_k = reinterpret_cast<std::uint16_t*>(room.gradients);
  auto* packed_d_v = packed_d_k + args.qkv.rows * kv_width;
  if (shape.packed) {
    data.d_k = packed_d_k;
    data.d_v = packed_d_v;
  }
  if (takes_lse(shape, packing, args.qkv.rows, args.lse)) {
    data.stats = const_cast<float*>(args.lse);
  } else {
    numbers_to_theirs(stream, {.ours = const_cast<float*>(args.lse),
                               .theirs = room.stats,
                               .heads = args.heads.q_heads,
                               .tokens = args.qkv.rows,
                               .used = packing.used,
                               .length = shape.packed ? 0 : shape.length});
  }
  if (fixed_order) {
    // Other users of the workspace must not affect the bits.
    const std::size_t scratch = std::min(room.scratch_bytes, cudnn_scratch(args.heads, args.qkv.rows));
    if (!backward_in_fixed_order(stream, device, shape, data, scratch)) return false;
  } else {
    describe(stream, args.documents, shape, room, data);
    run_graph(stream, device, shape, data);
  }
  if (shape.packed) {
    place(stream, d_k, args.d_qkv.ld, packed_d_k, packing.used, kv_width);
    place(stream, d_v, args.d_qkv.ld, packed_d_v, packing.used, kv_width);
  }
  clear_rows(stream, args.d_qkv, packing.used);
  return true;
}

}  // namespace octet::ops::cuda
