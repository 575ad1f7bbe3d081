#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "nf4_parts.h"
#include "octet/model/parameter_source.h"
#include "octet/store/placement.h"

namespace octet::store {

/// Elements of one format in memory that the device reads.
struct Array {
  void* data = nullptr;
  DType dtype = DType::f32;

  explicit operator bool() const { return data != nullptr; }
  std::size_t bytes(std::int64_t count) const { return static_cast<std::size_t>(count) * size_of(dtype); }
  /// The elements from `index` on.
  Array from(std::int64_t index) const {
    return data == nullptr ? *this : Array{static_cast<std::byte*>(data) + bytes(index), dtype};
  }
};

/// A run of a master as a matrix, wide enough to be shared out among threads by rows, and its tail.
template <typename Do>
void as_matrices(const Array& data, std::int64_t count, Do&& act) {
  constexpr std::int64_t kWidth = 4096;
  const std::int64_t body = count / kWidth * kWidth, rest = count - body;
  if (body > 0) act(ops::ConstMatrix(data.data, data.dtype, body / kWidth, kWidth, kWidth), std::int64_t{0});
  if (rest > 0) act(ops::ConstMatrix(data.from(body).data, data.dtype, 1, rest, rest), body);
}

/// A run of rows of one tensor that has an FP8 scale of its own.
struct ScaledRun {
  std::int64_t begin = 0;  ///< from the start of the segment
  std::int64_t count = 0;
  std::int64_t scale = 0;  ///< its number among the scales of FP8 weights, trained ones or others
  bool part = false;       ///< its tensor has several
};

/// The buffers of one segment on this rank, as its row of the table asks for. Counts and offsets are
/// elements.
struct Segment {
  const model::SegmentSpec* spec = nullptr;
  Placement row;
  std::int64_t padded = 0;  ///< of the whole segment: world * slice
  std::int64_t slice = 0;
  std::int64_t own = 0;  ///< where this rank's slice begins: rank * slice

  DType dtype = DType::f32;  ///< of what the core reads: f32, bf16 or FP8
  /// [padded] what the core reads: a copy of the master, the only weights, or, of at_use_slot, decoded ones
  std::uint8_t* copy = nullptr;
  /// FP8 scaled by rows: by what the codes of each row count, tensor behind tensor (row_scale_of).
  float* row_scales = nullptr;
  /// [padded] FP8: each tensor as [cols, rows], where products need it; of at_use_slot when made at use.
  std::uint8_t* transposed = nullptr;
  std::uint8_t* shard = nullptr;  ///< [slice] own slice of the copy before its gather: inside `copy` unless
                                  ///< parameters are cut or travel in another format
  comm::Wire gather = comm::Wire::f32;  ///< in which the copy is gathered; f32: as it lies

  // In NF4: the only weights, as bytes.
  std::vector<Nf4Part> nf4;
  std::int64_t stored_slice = 0;         ///< bytes; rank r's begins at r * stored_slice
  std::uint8_t* stored = nullptr;        ///< [world * stored_slice] whole
  std::uint8_t* stored_shard = nullptr;  ///< [stored_slice] own slice: inside `stored` unless that is cut

  /// Held between steps, of masters and moments or of the only weights: [state_begin, state_begin +
  /// state_count).
  std::int64_t state_begin = 0;
  std::int64_t state_count = 0;
  Array master;               ///< [state_count]; null where nothing is trained
  Array exp_avg, exp_avg_sq;  ///< [state_count]
  /// Of 8-bit moments: a scale for each ops::kMomentBlock elements.
  float* exp_avg_scale = nullptr;
  float* exp_avg_sq_scale = nullptr;

  bool moments_away = false, master_away = false;  ///< in the host's memory

  Array gradient;  ///< [padded] this rank's gradients; null where nothing is trained
  Array sum;       ///< [slice] own slice of the sum over ranks and micro-batches
  Array total;     ///< [state_count] the sums that the update reads: `sum` itself, or around it
  std::uint16_t* residual = nullptr;  ///< [padded] bf16: what narrow wires lost of this rank's gradients
  std::vector<float*> tree;           ///< strict: [padded] each, sums of this rank's micro-batches so far

  std::vector<std::vector<ScaledRun>> scaled;  ///< per tensor; no runs where the copy is not FP8
  std::vector<ops::AdamWSpan> spans;           ///< tensors inside the state held, from state_begin
  std::vector<ScaledRun> held;                 ///< scaled runs inside the state held, from state_begin

  bool master_is_copy() const { return row.trained() && dtype == master.dtype; }
  /// [state_count] what is kept between steps: the master, or the only weights.
  Array kept() const {
    if (row.trained()) return master;
    return {.data = row.axis == Axis::none ? copy : shard, .dtype = dtype};
  }
  static std::int64_t blocks(std::int64_t count) {
    return (count + ops::kMomentBlock - 1) / ops::kMomentBlock;
  }
  bool gathered_narrow() const { return gather != comm::Wire::f32; }
  /// What gathers make whole: the buffer, bytes of a slice of it, and the own slice before it is there.
  std::uint8_t* gather_buffer() const { return row.decoded() ? stored : copy; }
  std::size_t gather_bytes() const {
    return row.decoded() ? static_cast<std::size_t>(stored_slice) : copy_bytes(slice);
  }
  const std::uint8_t* gather_from() const { return row.decoded() ? stored_shard : shard; }
  std::size_t copy_bytes(std::int64_t count) const {
    return static_cast<std::size_t>(count) * size_of(dtype);
  }
};

/// Segments of fewer elements, and those of vectors, always travel as they lie: norms and biases are few, and
/// they steer everything behind them.
inline constexpr std::int64_t kNarrowFrom = 1024;
/// True for a segment that may travel in a narrow format.
bool may_be_narrow(const model::SegmentSpec& spec);
/// In which format a segment's gradients travel.
comm::Wire reduce_wire(const model::SegmentSpec& spec, const Options& options);

/// Where the scales of the rows of a segment's tensor begin; of as many as it has tensors: their number. Each
/// tensor's begin on a 16-byte boundary, as products want it.
std::int64_t row_scale_of(const model::SegmentSpec& spec, std::size_t tensor);

/// A run of one tensor inside a range of its segment.
struct TensorRun {
  std::size_t tensor = 0;
  std::int64_t begin = 0;  ///< from the start of the range
  std::int64_t count = 0;
};
/// The tensors of `spec` inside elements [begin, begin + count) of the segment, in order.
std::vector<TensorRun> runs_within(const model::SegmentSpec& spec, std::int64_t begin, std::int64_t count);

/// Acts on the runs of elements [begin, begin + count) where no tensor lies: their place in that range, and
/// how many they are.
template <typename Do>
void each_gap(const model::SegmentSpec& spec, std::int64_t begin, std::int64_t count, Do&& act) {
  std::int64_t at = 0;
  for (const TensorRun& run : runs_within(spec, begin, count)) {
    if (run.begin > at) act(at, run.begin - at);
    at = run.begin + run.count;
  }
  if (count > at) act(at, count - at);
}

/// All segments of this rank with their memory.
struct Segments {
  std::vector<std::vector<Segment>> groups;
  std::vector<int> gradient_slot;    ///< per group: groups of one slot share gradient buffers
  std::vector<int> copy_slot;        ///< per group: groups of one slot share the buffers of whole copies
  std::vector<int> at_use_slot;      ///< per group: the same for what is decoded or transposed at use
  int slots = 0;                     ///< numbers are below this
  std::vector<DType> scale_formats;  ///< of the FP8 weights that are trained, by number of the scale
  std::vector<std::string> scale_names;
  std::vector<DType> fixed_scale_formats;  ///< the same of those that are not
  std::vector<std::string> fixed_scale_names;
  /// Per group: the number of its first scale, and how many it has.
  std::vector<std::pair<std::int64_t, std::int64_t>> group_scales;
  int rank = 0;
  int world = 1;
  bool trains = false;         ///< some segment is trained
  bool fixed = false;          ///< some segment is not
  DType compute = DType::f32;  ///< of values that decoded weights have before they become FP8

  template <typename Do>
  void each(Do&& act) {
    for (auto& group : groups)
      for (Segment& segment : group) act(segment);
  }
};

/// Reserves everything. `layout` must stay where it is.
Segments reserve_segments(const model::ParameterLayout& layout, Arena& arena, const comm::Place& place,
                          const Options& options);

}  // namespace octet::store
