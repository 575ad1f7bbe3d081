// In a fixed order, cuDNN keeps sums of d_q for each range of keys, so the scratch may only fit a part of a
// micro-batch. Documents of different lengths are copied to separate rows and padded with zeros to one of few
// lengths. So they can use the graphs of documents of one length. Padding tokens are hidden from earlier
// tokens. As queries they are zeros with a d_out of zero, so they add nothing to any gradient.
#include "cuda/attention/fixed_order.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "cuda/attention/packing.h"
#include "cuda/scratch.h"

namespace octet::ops::cuda {

namespace {

/// Returns `data` with pointers advanced to a document and a KV head with its query heads.
GraphData moved(const GraphShape& shape, const GraphData& data, std::int64_t document, std::int64_t kv_head) {
  const std::int64_t head = shape.heads.q_heads / shape.heads.kv_heads * kv_head;
  const std::int64_t token = document * shape.length;
  // Advances a bf16 array with `ld` elements between tokens.
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

/// A part of a batch of documents of one length that runs as one graph: some documents with all heads, or one
/// document with some KV heads and their query heads.
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

/// Returns nothing if not even one KV head of one document fits.
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

// --- documents of different lengths --------------------------------------------------------------------

/// Documents are combined while the padding costs at most this many bytes per document.
constexpr std::size_t kWorthACall = std::size_t{32} << 20;
constexpr std::int64_t kMostTogether = 64;

/// Returns the padded length of a document: a power of two or three quarters of one, in multiples of the 128
/// keys that cuDNN processes at once.
std::int64_t padded_length(std::int64_t length) {
  const auto power = static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(length)));
  if (power <= 128) return 128;
  return power >= 512 && length <= power / 4 * 3 ? power / 4 * 3 : power;
}

/// Documents from `first` on with all heads, or one document with some KV heads at a time.
struct PackedPortion {
  std::int64_t first = 0, documents = 1;
  std::int64_t length = 0;  ///< padded length of each document
  std::int64_t kv_heads = 1;
};

GraphShape shape_of(const GraphShape& whole, const PackedPortion& portion) {
  GraphShape shape = shape_of(whole, Portion{.documents = portion.documents, .kv_heads = portion.kv_heads});
  shape.length = portion.length;
  shape.qkv_ld = shape.d_q_ld = shape.d_kv_ld = shape.heads.qkv_width();
  shape.out_ld = shape.d_out_ld = shape.heads.q_heads * shape.heads.head_dim;
  if (shape.window >= shape.length) shape.window = 0;
  return shape;
}

/// Offsets of the copies in the scratch, and the end of the last copy.
struct Copies {
  std::size_t qkv = 0, out = 0, d_out = 0, d_qkv = 0, stats = 0, end = 0;
};

Copies copies_of(const GraphShape& shape) {
  const auto tokens = static_cast<std::size_t>(shape.batch * shape.length);
  const std::size_t wide = aligned(tokens * static_cast<std::size_t>(shape.qkv_ld) * 2);
  const std::size_t narrow = aligned(tokens * static_cast<std::size_t>(shape.out_ld) * 2);
  Copies at;
  at.out = at.qkv + wide;
  at.d_out = at.out + narrow;
  at.d_qkv = at.d_out + narrow;
  at.stats = at.d_qkv + wide;
  at.end = at.stats + aligned(tokens * static_cast<std::size_t>(shape.heads.q_heads) * sizeof(float));
  return at;
}

/// Splits documents of different lengths into portions that fit the scratch.
class Cutter {
 public:
  Cutter(cudaStream_t stream, int device, const PackedBackward& args)
      : stream_(stream), device_(device), args_(args) {}

  /// Returns nothing if a document does not fit with one KV head.
  std::optional<std::vector<PackedPortion>> portions() {
    std::vector<PackedPortion> all;
    for (std::int64_t first = 0; first < args_.documents.count; first += all.back().documents) {
      const auto next = portion_from(first);
      if (!next) return std::nullopt;
      all.push_back(*next);
    }
    return all;
  }

 private:
  std::int64_t length_of(std::int64_t document) const {
    const std::int32_t* starts = args_.documents.host_cu_seqlens;
    return padded_length(starts[document + 1] - starts[document]);
  }
  /// Returns the bytes of the copies and of cuDNN's scratch; nothing if cuDNN refuses.
  std::optional<std::size_t> bytes_of(const PackedPortion& portion) const {
    const GraphShape shape = shape_of(args_.whole, portion);
    const auto scratch = graph_scratch(stream_, device_, shape);
    if (!scratch) return std::nullopt;
    return copies_of(shape).end + *scratch;
  }
  bool fits(const PackedPortion& portion) const {
    const auto bytes = bytes_of(portion);
    return bytes && *bytes <= args_.data.scratch_bytes;
  }
  /// Returns the bytes of one document of this length with all heads; nothing if it does not fit.
  std::optional<std::size_t> bytes_alone(std::int64_t length) {
    if (const auto it = alone_.find(length); it != alone_.end()) return it->second;
    auto bytes = bytes_of({.length = length, .kv_heads = args_.whole.heads.kv_heads});
    if (bytes && *bytes > args_.data.scratch_bytes) bytes.reset();
    return alone_.emplace(length, bytes).first->second;
  }
  std::optional<PackedPortion> portion_from(std::int64_t first) {
    PackedPortion portion{.first = first, .length = length_of(first), .kv_heads = args_.whole.heads.kv_heads};
    if (!bytes_alone(portion.length)) return with_fewer_heads(portion);
    while (const auto twice = twice_as_many(portion)) portion = *twice;
    while (portion.documents > 1 && !fits(portion)) portion.documents /= 2;
    return portion;
  }
  /// Returns nothing if there are too few documents, if they do not fit, or if there would be too much
  /// padding.
  std::optional<PackedPortion> twice_as_many(const PackedPortion& portion) {
    PackedPortion twice = portion;
    twice.documents *= 2;
    const std::int64_t end = twice.first + twice.documents;
    if (end > args_.documents.count || twice.documents > kMostTogether) return std::nullopt;
    std::size_t apart = 0;
    for (std::int64_t d = twice.first; d < end; ++d) {
      const auto bytes = bytes_alone(length_of(d));
      if (!bytes) return std::nullopt;
      apart += *bytes + kWorthACall;
      twice.length = std::max(twice.length, length_of(d));
    }
    const std::size_t together = static_cast<std::size_t>(twice.documents) * *bytes_alone(twice.length);
    if (together > args_.data.scratch_bytes || together > apart) return std::nullopt;
    return twice;
  }
  std::optional<PackedPortion> with_fewer_heads(PackedPortion portion) const {
    portion.kv_heads = 1;
    const auto least = bytes_of(portion);
    if (!least || *least > args_.data.scratch_bytes) return std::nullopt;
    PackedPortion larger = portion;
    larger.kv_heads = largest_divisor(args_.whole.heads.kv_heads, args_.data.scratch_bytes / *least);
    return fits(larger) ? larger : portion;
  }

  cudaStream_t stream_;
  int device_;
  const PackedBackward& args_;
  std::map<std::int64_t, std::optional<std::size_t>> alone_;
};

/// Sets the graph pointers to the copies.
GraphData data_of(const GraphShape& shape, const GraphData& whole) {
  const Copies at = copies_of(shape);
  auto* room = static_cast<std::uint8_t*>(whole.scratch);
  const auto array = [&](std::size_t from) { return reinterpret_cast<std::uint16_t*>(room + from); };
  const std::int64_t to_k = shape.heads.q_heads * shape.heads.head_dim;
  const std::int64_t to_v = to_k + shape.heads.kv_heads * shape.heads.head_dim;
  return {.q = array(at.qkv),
          .k = array(at.qkv) + to_k,
          .v = array(at.qkv) + to_v,
          .out = array(at.out),
          .stats = reinterpret_cast<float*>(room + at.stats),
          .d_out = array(at.d_out),
          .d_q = array(at.d_qkv),
          .d_k = array(at.d_qkv) + to_k,
          .d_v = array(at.d_qkv) + to_v,
          .scratch = room + at.end,
          .scratch_bytes = whole.scratch_bytes - at.end};
}

PaddedColumns columns(const void* ours, std::int64_t ours_ld, const void* padded, std::int64_t padded_ld,
                      std::int64_t heads, const GraphShape& shape) {
  return {.ours = const_cast<void*>(ours),
          .padded = const_cast<void*>(padded),
          .ours_ld = ours_ld,
          .padded_ld = padded_ld,
          .cols = heads * shape.heads.head_dim};
}

/// Enqueues the KV heads of a portion from `kv_head` on.
void run_portion(cudaStream_t stream, int device, const PackedBackward& args, const PackedPortion& portion,
                 std::int64_t kv_head) {
  const GraphShape& whole = args.whole;
  const GraphShape shape = shape_of(whole, portion);
  const GraphData ours = moved(whole, args.data, 0, kv_head);
  const GraphData theirs = data_of(shape, args.data);
  const std::int64_t q_heads = shape.heads.q_heads, kv_heads = shape.heads.kv_heads;
  const PaddedDocuments documents{.cu_seqlens = args.documents.cu_seqlens + portion.first,
                                  .count = portion.documents,
                                  .length = portion.length};
  pad_columns(stream, documents,
              {columns(ours.q, whole.qkv_ld, theirs.q, shape.qkv_ld, q_heads, shape),
               columns(ours.k, whole.qkv_ld, theirs.k, shape.qkv_ld, kv_heads, shape),
               columns(ours.v, whole.qkv_ld, theirs.v, shape.qkv_ld, kv_heads, shape),
               columns(ours.out, whole.out_ld, theirs.out, shape.out_ld, q_heads, shape),
               columns(ours.d_out, whole.d_out_ld, theirs.d_out, shape.d_out_ld, q_heads, shape)});
  pad_numbers(stream, documents,
              {.ours = ours.stats, .padded = theirs.stats, .heads = q_heads, .tokens = whole.length});
  run_graph(stream, device, shape, theirs);
  unpad_columns(stream, documents,
                {columns(ours.d_q, whole.d_q_ld, theirs.d_q, shape.d_q_ld, q_heads, shape),
                 columns(ours.d_k, whole.d_kv_ld, theirs.d_k, shape.d_kv_ld, kv_heads, shape),
                 columns(ours.d_v, whole.d_kv_ld, theirs.d_v, shape.d_kv_ld, kv_heads, shape)});
}

}  // namespace

bool backward_in_fixed_order(cudaStream_t stream, int device, const GraphShape& whole, const GraphData& data,
                             std::size_t scratch_bytes) {
  const auto portion = portion_of(stream, device, whole, scratch_bytes);
  if (!portion) return false;
  const GraphShape shape = shape_of(whole, *portion);
  for (std::int64_t document = 0; document < whole.batch; document += portion->documents) {
    for (std::int64_t kv_head = 0; kv_head < whole.heads.kv_heads; kv_head += portion->kv_heads) {
      run_graph(stream, device, shape, moved(whole, data, document, kv_head));
    }
  }
  return true;
}

bool packed_backward_in_fixed_order(cudaStream_t stream, int device, const PackedBackward& args) {
  const auto portions = Cutter(stream, device, args).portions();
  if (!portions) return false;
  for (const PackedPortion& portion : *portions) {
    for (std::int64_t kv_head = 0; kv_head < args.whole.heads.kv_heads; kv_head += portion.kv_heads) {
      run_portion(stream, device, args, portion, kv_head);
    }
  }
  return true;
}

}  // namespace octet::ops::cuda
