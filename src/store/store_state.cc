#include "store_state.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "octet/base/dtype.h"

namespace octet::store {
namespace {

/// Appends slices of a part that is cut out of its tensor. `whole` has the name, dtype and shape of the
/// tensor; its `data` points to element `begin` of the part. Rows with cut columns form one strided slice.
void append_cut(const model::NamedPart& part, TensorSlice whole, std::int64_t begin, std::int64_t count,
                std::vector<TensorSlice>& slices) {
  const auto& [rows, cols] = *part.cut;
  while (count > 0) {
    TensorSlice& slice = slices.emplace_back(whole);
    const std::int64_t row = begin / cols.count, col = begin % cols.count;
    slice.begin = (rows.begin + row) * cols.of + cols.begin + col;
    if (cols.whole()) {
      slice.count = count;
    } else if (col == 0 && count >= cols.count) {
      slice.count = slice.pitch = cols.count;
      slice.rows = count / cols.count;
      slice.stride = cols.of;
    } else {
      slice.count = std::min(count, cols.count - col);
    }
    const std::int64_t taken = slice.elements();
    begin += taken;
    count -= taken;
    if (whole.data != nullptr)
      whole.data =
          static_cast<std::byte*>(whole.data) + static_cast<std::size_t>(taken) * size_of(whole.dtype);
  }
}

}  // namespace

void append_slices(const model::SegmentSpec& spec, const SliceRange& range, const std::string& prefix,
                   std::vector<TensorSlice>& slices) {
  for (const model::TensorSpec& tensor : spec.tensors) {
    for (const model::NamedPart& part : tensor.parts) {
      const std::int64_t start = tensor.offset + part.begin;
      const std::int64_t from = std::max(start, range.begin);
      const std::int64_t to = std::min(start + part.count, range.begin + range.count);
      if (from >= to) continue;
      TensorSlice slice{.name = prefix + part.name,
                        .dtype = range.data.dtype,
                        .shape = part.shape,
                        .begin = from - start,
                        .count = to - from,
                        .data = range.data.from(from - range.begin).data};
      if (part.cut) {
        append_cut(part, std::move(slice), from - start, to - from, slices);
      } else {
        slices.push_back(std::move(slice));
      }
    }
  }
}

namespace {

/// Appends the elements of one kind of state that `choice` selects.
void append_state(const Segment& s, const Array& data, const SliceChoice& choice, const std::string& prefix,
                  std::vector<TensorSlice>& slices) {
  if (!data) return;
  if (choice.whole) {
    return append_slices(*s.spec, {.begin = 0, .count = s.padded, .data = {nullptr, data.dtype}}, prefix,
                         slices);
  }
  const std::int64_t begin = choice.own_only ? s.piece_begin : s.state_begin;
  append_slices(*s.spec,
                {.begin = begin,
                 .count = choice.own_only ? s.piece : s.state_count,
                 .data = data.from(begin - s.state_begin)},
                prefix, slices);
}

void append_scales(const Segment& s, float* scales, const SliceChoice& choice, const std::string& prefix,
                   std::vector<TensorSlice>& slices) {
  if (scales == nullptr) return;
  const std::int64_t begin = choice.whole ? 0 : choice.own_only ? s.piece_begin : s.state_begin;
  const std::int64_t count = choice.whole ? s.padded : choice.own_only ? s.piece : s.state_count;
  for (const TensorRun& run : runs_within(*s.spec, begin, count)) {
    const model::TensorSpec& tensor = s.spec->tensors[run.tensor];
    const std::int64_t first =
        begin + run.begin;  // in the segment; a multiple of kMomentBlock, like all boundaries here
    slices.push_back({.name = prefix + tensor.name,
                      .dtype = DType::f32,
                      .shape = {Segment::blocks(tensor.in_all > 0 ? tensor.in_all : tensor.count())},
                      .begin = (tensor.before + first - tensor.offset) / ops::kMomentBlock,
                      .count = Segment::blocks(run.count),
                      .data = choice.whole ? nullptr : scales + (first - s.state_begin) / ops::kMomentBlock});
  }
}

/// Every rank has its own residuals for all elements: row r of a tensor belongs to rank r.
void append_residuals(Segments& segments, std::vector<TensorSlice>& slices) {
  segments.each([&](Segment& s) {
    if (s.residual == nullptr) return;
    const std::size_t first = slices.size();
    append_slices(*s.spec, {.begin = 0, .count = s.padded, .data = {s.residual, DType::bf16}}, "residuals/",
                  slices);
    for (std::size_t i = first; i < slices.size(); ++i) {
      slices[i].begin = s.rank * slices[i].count;
      slices[i].shape.insert(slices[i].shape.begin(), s.world);
    }
  });
}

}  // namespace

std::vector<TensorSlice> parameter_slices(const Segment& segment) {
  std::vector<TensorSlice> slices;
  append_state(segment, segment.master, {}, "", slices);
  return slices;
}

std::vector<TensorSlice> state_slices(Segments& segments, const SliceChoice& choice) {
  std::vector<TensorSlice> slices;
  const auto add = [&](auto member, const std::string& prefix) {
    segments.each([&](Segment& s) { append_state(s, s.*member, choice, prefix, slices); });
  };
  add(&Segment::master, "");
  if (choice.moments) {
    add(&Segment::exp_avg, "exp_avg/");
    add(&Segment::exp_avg_sq, "exp_avg_sq/");
    segments.each([&](Segment& s) {
      append_scales(s, s.exp_avg_scale, choice, "exp_avg_scale/", slices);
      append_scales(s, s.exp_avg_sq_scale, choice, "exp_avg_sq_scale/", slices);
    });
    append_residuals(segments, slices);
  }
  return slices;
}

std::vector<TensorSlice> sum_slices(Segments& segments) {
  std::vector<TensorSlice> slices;
  segments.each([&](Segment& s) {
    if (!s.sum) return;
    append_slices(*s.spec, {.begin = s.piece_begin, .count = s.piece, .data = s.sum}, "", slices);
  });
  return slices;
}

StoreState::StoreState(Segments& segments, Updater& updater, const Axes& axes, const ExpertAxis& experts,
                       Device& device, const Options& options)
    : segments_(segments),
      updater_(updater),
      axes_(axes),
      experts_(experts),
      device_(device),
      options_(options),
      seen_(device),
      needed_(device) {
  if (!axes.split()) return;
  with_all_experts([&](Segments& all) {
    for (const std::string& name : all.scale_names) all_scales_.emplace(name, std::ssize(all_scales_));
  });
}

void StoreState::expect_mirrors(Arena& arena) {
  std::vector<TensorSlice> saved = state_slices(segments_, {.own_only = true, .moments = true});
  std::vector<TensorSlice> read = state_slices(segments_, {.own_only = false, .moments = true});
  append_scales(saved, Scope::own);
  append_scales(read, Scope::held);
  arena.expect_passing("state/saved", HostMirror::bytes_for(saved, device_), MemoryKind::host);
  arena.expect_passing("state/loaded", HostMirror::bytes_for(read, device_), MemoryKind::host);
}

void StoreState::fill_masters(const Fill& fill) {
  const auto each_trained = [&](const auto& act) {
    segments_.each([&](Segment& segment) {
      if (segment.row.trained()) act(segment);
    });
  };
  if (options_.storage.parameters != DType::f32) {
    each_trained([&](Segment& segment) { fill_rounded(segment, fill); });
  } else if (device_.host_reaches_memory()) {
    if (segments_.trains) fill(state_slices(segments_, {.own_only = false, .moments = false}));
  } else {
    // One segment at a time, so that the host never holds the whole model.
    each_trained([&](Segment& segment) {
      fill(needed_.open(parameter_slices(segment)));
      needed_.send();
    });
  }
}

void StoreState::fill_rounded(Segment& segment, const Fill& fill) {
  std::vector<TensorSlice> stored = needed_.open(parameter_slices(segment));
  std::vector<TensorSlice> wide = stored;
  std::vector<float> values;
  if (segment.master.dtype == DType::bf16) {
    std::int64_t count = 0;
    for (const TensorSlice& slice : stored) count += slice.count;
    values.resize(static_cast<std::size_t>(count));
    float* at = values.data();
    for (TensorSlice& slice : wide) {
      slice.dtype = DType::f32;
      slice.data = at;
      at += slice.count;
    }
  }
  fill(wide);
  for (std::size_t i = 0; i < stored.size() && !values.empty(); ++i) {
    const auto* from = static_cast<const float*>(wide[i].data);
    auto* to = static_cast<std::uint16_t*>(stored[i].data);
    for (std::int64_t e = 0; e < stored[i].count; ++e) to[e] = to_bf16(from[e]);
  }
  needed_.send();
}

void StoreState::append_scales(std::vector<TensorSlice>& slices, Scope scope) {
  if (updater_.scales() == nullptr) return;
  for (TensorSlice& slice : updater_.scales()->state()) {
    if (axes_.split()) {
      append_split_scales(slice, scope, slices);
    } else if (scope != Scope::own || axes_.all.rank() == 0) {
      slices.push_back(std::move(slice));
    }
  }
}

// The last dimension of the state has one element per scale. Checkpoints have the scales of all ranks.
void StoreState::append_split_scales(const TensorSlice& held, Scope scope, std::vector<TensorSlice>& slices) {
  const std::int64_t own = std::ssize(segments_.scale_names), all = std::ssize(all_scales_);
  TensorSlice slice = held;
  slice.shape.back() = all;
  const std::int64_t rows = held.count / own;
  if (scope == Scope::whole) {
    slice.count = rows * all;
    return slices.push_back(std::move(slice));
  }
  axes_.each([&](comm::Collectives& one) {
    if (scope == Scope::own && one.rank() != 0) return;
    each_run_of_scales(segments_, axes_, one, true, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = first; i < first + count; ++i) {
        const std::int64_t at = all_scales_.at(segments_.scale_names[static_cast<std::size_t>(i)]);
        for (std::int64_t row = 0; row < rows; ++row) {
          slice.begin = row * all + at;
          slice.count = 1;
          slice.data = static_cast<float*>(held.data) + row * own + i;
          slices.push_back(slice);
        }
      }
    });
  });
}

TensorSlice StoreState::step_slice() {
  return {.name = "optimizer/step",
          .dtype = DType::i64,
          .shape = {1},
          .begin = 0,
          .count = 1,
          .data = &optimizer_steps_};
}

std::vector<TensorSlice> StoreState::whole_tensors() {
  const SliceChoice choice{.moments = true, .whole = true};
  if (!axes_.split()) return state_slices(segments_, choice);
  return with_all_experts([&](Segments& all) { return state_slices(all, choice); });
}

std::vector<TensorSlice> StoreState::owned(const std::vector<TensorSlice>& others) {
  std::vector<TensorSlice> slices = state_slices(segments_, {.own_only = true, .moments = true});
  const bool first = axes_.all.rank() == 0;
  append_scales(slices, Scope::own);
  slices.insert(slices.end(), others.begin(), others.end());
  slices = seen_.fetch(std::move(slices));
  if (first) slices.push_back(step_slice());
  return slices;
}

SnapshotSources StoreState::owned_places(const std::vector<TensorSlice>& others) {
  SnapshotSources places{.moving = others};
  for (TensorSlice& slice : state_slices(segments_, {.own_only = true, .moments = true})) {
    // Reductions write the residuals of narrow wires during the backward pass.
    const bool moves = slice.name.starts_with("residuals/");
    (moves ? places.moving : places.still).push_back(std::move(slice));
  }
  append_scales(places.still, Scope::own);
  if (axes_.all.rank() != 0) return places;
  places.host.push_back(step_slice());
  return places;
}

std::vector<TensorSlice> StoreState::needed(const std::vector<TensorSlice>& others) {
  std::vector<TensorSlice> slices = state_slices(segments_, {.own_only = false, .moments = true});
  append_scales(slices, Scope::held);
  slices.insert(slices.end(), others.begin(), others.end());
  slices = needed_.fetch(std::move(slices));
  slices.push_back(step_slice());
  return slices;
}

std::vector<TensorSlice> StoreState::tensors(const std::vector<TensorSlice>& others) {
  std::vector<TensorSlice> tensors = whole_tensors();
  append_scales(tensors, Scope::whole);
  tensors.insert(tensors.end(), others.begin(), others.end());
  tensors.push_back(step_slice());
  for (TensorSlice& tensor : tensors) tensor.data = nullptr;
  return tensors;
}

std::vector<TensorSlice> StoreState::gradients() {
  return seen_.fetch(sum_slices(segments_));
}

}  // namespace octet::store
