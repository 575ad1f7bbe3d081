#include "held.h"

namespace octet::store {
namespace {

class Pieces {
 public:
  explicit Pieces(const Segments& segments) : world_(segments.world) {
    for (const auto& group : segments.groups) {
      for (const Segment& s : group) split_ = split_ || s.spec->split_experts;
    }
  }
  /// Returns the axis of memory of a segment. Other ranks have other experts.
  static Axis axis_of(const Segment& s, Axis axis) { return s.spec->split_experts ? Axis::data : axis; }

  void add(Held kind, const void* data, std::size_t bytes, Axis axis) {
    if (data == nullptr || bytes == 0) return;
    pieces_.push_back({.data = const_cast<void*>(data),
                       .bytes = static_cast<std::int64_t>(bytes),
                       .kind = kind,
                       .replica = axis == Axis::none && world_ > 1});
  }
  void add_scales(Held kind, const precision::ScaleSet* scales) {
    if (scales == nullptr || scales->count() == 0) return;
    const auto count = static_cast<std::size_t>(scales->count());
    for (const TensorSlice& slice : scales->state())
      add(kind, slice.data, static_cast<std::size_t>(slice.count) * size_of(slice.dtype),
          split_ ? Axis::data : Axis::none);
    add(kind, scales->scale(0), count * sizeof(float), split_ ? Axis::data : Axis::none);
  }
  const std::vector<Piece>& all() const { return pieces_; }

 private:
  int world_;
  bool split_ = false;  ///< other ranks have other experts, with other scales
  std::vector<Piece> pieces_;
};

/// Adds the tensors of a segment that are stored in `data`, from its element `begin` on. Padding is left out:
/// it is never read, and loading does not overwrite it.
void add_tensors(Held kind, const Segment& s, const Array& data, std::int64_t begin, std::int64_t count,
                 Axis axis, Pieces& pieces) {
  if (!data) return;
  for (const TensorRun& run : runs_within(*s.spec, begin, count))
    pieces.add(kind, data.from(run.begin).data, data.bytes(run.count), Pieces::axis_of(s, axis));
}

void add_fixed(const Segment& s, Pieces& pieces) {
  const bool whole = s.row.axis == Axis::none;
  if (s.row.decoded()) {
    const auto bytes = static_cast<std::size_t>(whole ? s.world * s.stored_slice : s.stored_slice);
    pieces.add(Held::frozen, whole ? s.stored : s.stored_shard, bytes, s.row.axis);
  } else {
    add_tensors(Held::frozen, s, s.kept(), s.state_begin, s.state_count, s.row.axis, pieces);
  }
  if (s.row_scales == nullptr) return;
  const auto scales = static_cast<std::size_t>(row_scale_of(*s.spec, s.spec->tensors.size()));
  pieces.add(Held::frozen, s.row_scales, scales * sizeof(float), s.row.axis);
}

void add_trained(const Segment& s, bool keeps_transposed, Pieces& pieces) {
  const auto* master = static_cast<const std::uint8_t*>(s.master.data);
  const bool whole = s.row.axis == Axis::none;
  const auto add_copies = [&](std::uint8_t* data, std::int64_t begin, std::int64_t count) {
    add_tensors(Held::parameters, s, {.data = data, .dtype = s.dtype}, begin, count, s.row.axis, pieces);
  };
  if (whole) {
    add_copies(s.copy, 0, s.padded);
    if (keeps_transposed) add_copies(s.transposed, 0, s.padded);
  } else if (s.shard != master) {
    add_copies(s.shard, s.own, s.slice);
  }
  const auto add_state = [&](Held kind, const Array& data) {
    add_tensors(kind, s, data, s.state_begin, s.state_count, s.row.state_axis, pieces);
  };
  const bool inside = whole && master >= s.copy && master < s.copy + s.copy_bytes(s.padded);
  if (!inside) add_state(Held::masters, s.master);
  add_state(Held::moments, s.exp_avg);
  add_state(Held::moments, s.exp_avg_sq);
  for (float* scales : {s.exp_avg_scale, s.exp_avg_sq_scale}) {
    if (scales == nullptr) continue;
    for (const TensorRun& run : runs_within(*s.spec, s.state_begin, s.state_count)) {
      pieces.add(Held::moments, scales + run.begin / ops::kMomentBlock,
                 static_cast<std::size_t>(Segment::blocks(run.count)) * sizeof(float),
                 Pieces::axis_of(s, s.row.state_axis));
    }
  }
}

}  // namespace

const char* name_of(Held kind) {
  constexpr const char* kNames[] = {"parameters", "masters", "moments", "frozen weights"};
  return kNames[static_cast<int>(kind)];
}

std::vector<Piece> held(Segments& segments, Updater& updater, const Fixed& fixed, bool keeps_transposed) {
  Pieces pieces(segments);
  segments.each([&](const Segment& s) {
    s.row.trained() ? add_trained(s, keeps_transposed, pieces) : add_fixed(s, pieces);
  });
  pieces.add_scales(Held::parameters, updater.scales());
  pieces.add_scales(Held::frozen, fixed.scales());
  return pieces.all();
}

}  // namespace octet::store
