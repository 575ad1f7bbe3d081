#pragma once

#include <cstdint>
#include <iterator>
#include <utility>
#include <vector>

#include "nf4_parts.h"
#include "octet/comm/collectives.h"
#include "octet/model/parameter_source.h"
#include "octet/store/placement.h"

namespace octet::store {

/// An array in memory that the device can access.
struct Array {
  void* data = nullptr;
  DType dtype = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  std::size_t bytes(std::int64_t count) const { return static_cast<std::size_t>(count) * size_of(dtype); }
  /// Returns the array from element `index` on.
  Array from(std::int64_t index) const {
    return data == nullptr ? *this : Array{static_cast<std::byte*>(data) + bytes(index), dtype};
  }
};

/// Calls `act` with `count` elements as a matrix with rows of 4,096 elements, and with the rest as a second
/// matrix of one row. Kernels split a matrix among threads by rows.
template <typename Do>
void as_matrices(const Array& data, std::int64_t count, Do&& act) {
  constexpr std::int64_t kWidth = 4096;
  const std::int64_t body = count / kWidth * kWidth, rest = count - body;
  if (body > 0) act(ops::ConstMatrix(data.data, data.dtype, body / kWidth, kWidth, kWidth), std::int64_t{0});
  if (rest > 0) act(ops::ConstMatrix(data.from(body).data, data.dtype, 1, rest, rest), body);
}

/// A run of rows of one tensor with its own FP8 scale.
struct ScaledRun {
  std::int64_t begin = 0;  ///< from the start of the segment
  std::int64_t count = 0;
  std::int64_t scale = 0;  ///< its number among the scales of FP8 weights, trained or fixed
  bool part = false;       ///< its tensor has several scales
};

/// The buffers of one segment on this rank, as its row of the placement table specifies. Counts and offsets
/// are elements.
struct Segment {
  const model::SegmentSpec* spec = nullptr;
  Placement row;
  int rank = 0;             ///< among the ranks that share the segment
  int world = 1;            ///< number of these ranks
  std::int64_t padded = 0;  ///< elements of the whole segment: world * slice
  std::int64_t slice = 0;
  std::int64_t own = 0;  ///< first element of this rank's slice: rank * slice
  /// With sharding groups: number of ranks with the same slice. This rank measures and saves only elements
  /// [piece_begin, piece_begin + piece), a part of its slice. Without groups this part is the whole slice.
  int replicas = 1;
  std::int64_t piece = 0;
  std::int64_t piece_begin = 0;

  DType dtype = DType::f32;  ///< format that the core reads: f32, bf16 or FP8
  /// [padded] Weights that the core reads: a copy of the master, the only weights, or decoded
  /// weights in a buffer of at_use_slot.
  std::uint8_t* copy = nullptr;
  /// Row-scaled FP8: the scale of the codes of each row, tensor after tensor (row_scale_of).
  float* row_scales = nullptr;
  /// [padded] FP8: each tensor as [cols, rows] if GEMMs need it; in a buffer of at_use_slot if made at use.
  std::uint8_t* transposed = nullptr;
  /// [slice] This rank's slice of the copy before its gather. It is inside `copy` unless parameters are
  /// sharded or are gathered in another format.
  std::uint8_t* shard = nullptr;
  comm::Wire gather = comm::Wire::f32;  ///< format in which the copy is gathered; f32: unconverted

  // NF4: the only weights, as bytes.
  std::vector<Nf4Part> nf4;
  std::vector<Nf4Run> nf4_runs;          ///< all parts
  std::int64_t stored_slice = 0;         ///< bytes; rank r's slice begins at r * stored_slice
  std::uint8_t* stored = nullptr;        ///< [world * stored_slice] the codes of all ranks
  std::uint8_t* stored_shard = nullptr;  ///< [stored_slice] this rank's slice; inside `stored` unless sharded

  /// The elements kept between steps, of masters and moments or of the only weights: [state_begin,
  /// state_begin + state_count).
  std::int64_t state_begin = 0;
  std::int64_t state_count = 0;
  Array master;               ///< [state_count]; null if not trained
  Array exp_avg, exp_avg_sq;  ///< [state_count]
  /// 8-bit moments: one scale per ops::kMomentBlock elements.
  float* exp_avg_scale = nullptr;
  float* exp_avg_sq_scale = nullptr;

  bool moments_away = false, master_away = false;  ///< stored in host memory

  Array gradient;  ///< [padded] this rank's gradients; null if not trained
  Array sum;       ///< [piece] this rank's piece of the sum over ranks and micro-batches
  Array total;  ///< [state_count] the sums that the update reads: `sum`, or a larger buffer that contains it
  /// [padded] bf16: rounding errors of narrow wires for this rank's gradients.
  std::uint16_t* residual = nullptr;
  /// With sums by source (Sources): [padded] each, gradients of tokens of the earlier ranks of the expert
  /// group. `gradient` has the gradients of the tokens of its last rank.
  std::vector<Array> earlier;
  /// strict: [padded] each, sums of the micro-batches so far. With sums by source, the buffers of the first
  /// source come first.
  std::vector<float*> tree;

  std::vector<std::vector<ScaledRun>> scaled;  ///< per tensor; no runs if the copy is not FP8
  std::vector<ops::AdamWSpan> spans;           ///< tensors inside the kept elements, relative to state_begin
  std::vector<ScaledRun> held;  ///< scaled runs inside the kept elements, relative to state_begin

  bool master_is_copy() const { return row.trained() && dtype == master.dtype; }
  /// Returns the [state_count] elements kept between steps: the master, or the only weights.
  Array kept() const {
    if (row.trained()) return master;
    return {.data = row.axis == Axis::none ? copy : shard, .dtype = dtype};
  }
  static std::int64_t blocks(std::int64_t count) {
    return (count + ops::kMomentBlock - 1) / ops::kMomentBlock;
  }
  bool gathered_narrow() const { return gather != comm::Wire::f32; }
  /// gather_buffer(): the buffer that a gather fills. gather_bytes(): bytes of a rank's slice of it.
  /// gather_from(): this rank's slice before the gather.
  std::uint8_t* gather_buffer() const { return row.decoded() ? stored : copy; }
  std::size_t gather_bytes() const {
    return row.decoded() ? static_cast<std::size_t>(stored_slice) : copy_bytes(slice);
  }
  const std::uint8_t* gather_from() const { return row.decoded() ? stored_shard : shard; }
  std::size_t copy_bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count) * size_of(dtype);
  }
};

/// How gradients of split experts are summed.
struct Sources {
  /// Ranks of an expert group, if the gradients of the tokens of each are summed like gradients of ranks
  /// with all experts. 1: one buffer has the gradients of the tokens of all these ranks.
  int count = 1;
  int first = 0;  ///< the first of these ranks, among all ranks
};
/// Returns by-source sums for Options::deterministic and Options::strict.
Sources sources_of(const Options& options, const comm::Place& all, const comm::Place& same_experts);

/// Vectors, and matrices with fewer elements, are always sent unconverted: they are small, and errors in
/// norms and biases affect all later layers.
inline constexpr std::int64_t kNarrowFrom = 1024;
/// Returns whether a segment may be sent in a narrow format.
bool may_be_narrow(const model::SegmentSpec& spec);
/// Returns the wire format of a segment's gradients.
comm::Wire reduce_wire(const model::SegmentSpec& spec, const Options& options);

/// Returns the index of the first row scale of a tensor in the segment. With `tensor` equal to the number of
/// tensors, returns the number of scales. Each tensor's scales begin on a 16-byte boundary, as GEMMs require.
std::int64_t row_scale_of(const model::SegmentSpec& spec, std::size_t tensor);

/// A run of one tensor inside a range of its segment.
struct TensorRun {
  std::size_t tensor = 0;
  std::int64_t begin = 0;  ///< from the start of the range
  std::int64_t count = 0;
};
/// Returns the runs of tensors of `spec` inside elements [begin, begin + count) of the segment, in order.
std::vector<TensorRun> runs_within(const model::SegmentSpec& spec, std::int64_t begin, std::int64_t count);

/// Calls `act` for the gaps between tensors in elements [begin, begin + count). Passes the offset in that
/// range and the length.
template <typename Do>
void each_gap(const model::SegmentSpec& spec, std::int64_t begin, std::int64_t count, Do&& act) {
  std::int64_t at = 0;
  for (const TensorRun& run : runs_within(spec, begin, count)) {
    if (run.begin > at) act(at, run.begin - at);
    at = run.begin + run.count;
  }
  if (count > at) act(at, count - at);
}

/// All segments of this rank, with their memory.
struct Segments {
  std::vector<std::vector<Segment>> groups;
  std::vector<int> gradient_slot;  ///< per group: groups of one slot share gradient buffers
  std::vector<int> copy_slot;      ///< per group: groups of one slot share the buffers of whole copies
  std::vector<int> at_use_slot;    ///< per group: the same for weights that are decoded or transposed at use
  int slots = 0;                   ///< upper bound of the slot numbers
  std::vector<DType> scale_formats;  ///< of trained FP8 weights, by scale
  std::vector<std::string> scale_names;
  std::vector<DType> fixed_scale_formats;  ///< the same for fixed FP8 weights
  std::vector<std::string> fixed_scale_names;
  /// Per group: its first scale and the number of its scales.
  std::vector<std::pair<std::int64_t, std::int64_t>> group_scales;
  int rank = 0;
  int world = 1;
  bool trains = false;         ///< at least one segment is trained
  bool fixed = false;          ///< at least one segment is not trained
  DType compute = DType::f32;  ///< dtype of decoded NF4 weights before their cast to FP8

  template <typename Do>
  void each(Do&& act) {
    for (auto& group : groups)
      for (Segment& segment : group) act(segment);
  }
};

/// The places of this rank among all ranks, and among the ranks with the same experts.
struct Places {
  comm::Place all, same_experts;
};

/// Reserves all memory. The result points into `layout`. `all`: the layout with the experts of all ranks. It
/// numbers the tensors for random rounding, so that the numbers do not depend on the size of expert groups.
/// Null: `layout` has all experts.
Segments reserve_segments(const model::ParameterLayout& layout, Arena& arena, const Places& places,
                          const Options& options, const model::ParameterLayout* all = nullptr);

/// The collectives of the ranks that share segments: all ranks, a sharding group, or the ranks with the same
/// experts.
struct Axes {
  comm::Collectives& all;
  comm::Collectives& same_experts;  ///< `all` if every rank has all experts
  comm::Collectives& shards;        ///< the sharding group; `all` without groups
  /// The ranks with the same shards in all groups, which are numbered like the groups. Null: no groups.
  comm::Collectives* replicas = nullptr;

  comm::Collectives& of(const Segment& s) const { return s.spec->split_experts ? same_experts : shards; }
  Places places() const { return {.all = all.place(), .same_experts = same_experts.place()}; }
  bool split() const { return &all != &same_experts; }
  /// Calls `act` for the collectives of ranks that share segments.
  template <typename Do>
  void each(Do&& act) const {
    act(shards);
    if (split()) act(same_experts);
  }
  /// Calls `act` for all collectives.
  template <typename Do>
  void every(Do&& act) const {
    if (replicas != nullptr) act(all), act(*replicas);
    each(act);
  }
};

/// Calls act(first, count) for the runs of FP8 scales that the ranks of `collectives` share, of trained or of
/// fixed weights.
template <typename Do>
void each_run_of_scales(const Segments& segments, const Axes& axes, const comm::Collectives& collectives,
                        bool trained, Do&& act) {
  std::int64_t first = 0, count = 0;
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      if (s.row.trained() != trained || &axes.of(s) != &collectives) continue;
      for (const auto& runs : s.scaled) {
        if (runs.empty()) continue;
        if (runs.front().scale != first + count) {
          if (count > 0) act(first, count);
          first = runs.front().scale, count = 0;
        }
        count += std::ssize(runs);
      }
    }
  }
  if (count > 0) act(first, count);
}

}  // namespace octet::store
