// The state of a store: initialisation, and slices for checkpoints.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "loaded_values.h"
#include "octet/base/error.h"
#include "octet/model/build.h"
#include "slices.h"
#include "store_parts.h"

namespace octet::store {

void ParameterStore::Parts::fill_rounded(Segment& segment,
                                         const std::function<void(const std::vector<TensorSlice>&)>& fill) {
  std::vector<TensorSlice> stored = needed.open(parameter_slices(segment));
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
  needed.send();
}

void ParameterStore::initialise(Stream& compute,
                                const std::function<void(const std::vector<TensorSlice>&)>& fill) {
  load_fixed(compute, fill);
  const auto each_trained = [&](const auto& act) {
    parts_->segments.each([&](Segment& segment) {
      if (segment.row.trained()) act(segment);
    });
  };
  if (parts_->options.storage.parameters != DType::f32) {
    each_trained([&](Segment& segment) { parts_->fill_rounded(segment, fill); });
  } else if (parts_->device.host_reaches_memory()) {
    if (parts_->segments.trains) fill(state_slices(parts_->segments, {.own_only = false, .moments = false}));
  } else {
    // One segment at a time, so that the host never holds the whole model.
    each_trained([&](Segment& segment) {
      fill(parts_->needed.open(parameter_slices(segment)));
      parts_->needed.send();
    });
  }
  refresh_copies(compute, Scales::from_weights);
}

void ParameterStore::load_fixed(Stream& compute,
                                const std::function<void(const std::vector<TensorSlice>&)>& fill) {
  synchronize(compute);
  Departures departures(parts_->device);
  parts_->fixed.load(
      [&](Stream& stream, const Segment& s, std::int64_t begin, std::int64_t count, float* out) {
        departures.send(stream, out, count, [&](float* to) {
          each_gap(*s.spec, begin, count,
                   [&](std::int64_t at, std::int64_t length) { std::fill_n(to + at, length, 0.0f); });
          std::vector<TensorSlice> slices;
          append_slices(*s.spec, {.begin = begin, .count = count, .data = {.data = to}}, "", slices);
          fill(slices);
        });
      },
      fill);
}

void ParameterStore::initialise(Stream& compute, std::uint64_t seed) {
  synchronize(compute);
  const auto fresh = [&](Stream& stream, const Segment& s, std::int64_t begin, std::int64_t count,
                         const Array& out) {
    for (const TensorRun& run : runs_within(*s.spec, begin, count)) {
      const model::TensorSpec& tensor = s.spec->tensors[run.tensor];
      model::initialise(stream, tensor,
                        {.seed = seed,
                         .begin = begin + run.begin - tensor.offset,
                         .count = run.count,
                         .out = out.from(run.begin).data,
                         .dtype = out.dtype});
    }
  };
  parts_->fixed.load(
      [&](Stream& stream, const Segment& s, std::int64_t begin, std::int64_t count, float* out) {
        each_gap(*s.spec, begin, count, [&](std::int64_t at, std::int64_t length) {
          parts_->device.zero(stream, out + at, static_cast<std::size_t>(length) * sizeof(float));
        });
        fresh(stream, s, begin, count, {.data = out});
      });
  parts_->segments.each([&](Segment& s) {
    if (s.row.trained()) fresh(compute, s, s.state_begin, s.state_count, s.master);
  });
  compute.synchronize();
  refresh_copies(compute, Scales::from_weights);
}

void ParameterStore::refresh_copies(Stream& compute, Scales scales) {
  check(!parts_->stepping, "copies are made again only between steps");
  parts_->needed.send();
  parts_->updater.make_copies(scales, parts_->gatherer, compute);
}

std::vector<TensorSlice> ParameterStore::owned_slices(const std::vector<TensorSlice>& others) const {
  std::vector<TensorSlice> slices = state_slices(parts_->segments, {.own_only = true, .moments = true});
  const bool first = parts_->collectives.rank() == 0;
  parts_->append_scales(slices, Parts::Scope::own);
  slices.insert(slices.end(), others.begin(), others.end());
  slices = parts_->seen.fetch(std::move(slices));
  if (first) slices.push_back(parts_->step_slice());
  return slices;
}

SnapshotSources ParameterStore::owned_places(const std::vector<TensorSlice>& others) const {
  SnapshotSources places{.moving = others};
  for (TensorSlice& slice : state_slices(parts_->segments, {.own_only = true, .moments = true})) {
    // Reductions write the residuals of narrow wires during the backward pass.
    const bool moves = slice.name.starts_with("residuals/");
    (moves ? places.moving : places.still).push_back(std::move(slice));
  }
  parts_->append_scales(places.still, Parts::Scope::own);
  if (parts_->collectives.rank() != 0) return places;
  places.host.push_back(parts_->step_slice());
  return places;
}

std::vector<TensorSlice> ParameterStore::needed_slices(const std::vector<TensorSlice>& others) const {
  std::vector<TensorSlice> slices = state_slices(parts_->segments, {.own_only = false, .moments = true});
  parts_->append_scales(slices, Parts::Scope::held);
  slices.insert(slices.end(), others.begin(), others.end());
  slices = parts_->needed.fetch(std::move(slices));
  slices.push_back(parts_->step_slice());
  return slices;
}

std::vector<TensorSlice> ParameterStore::state_tensors(const std::vector<TensorSlice>& others) const {
  std::vector<TensorSlice> tensors = parts_->whole_tensors();
  parts_->append_scales(tensors, Parts::Scope::whole);
  tensors.insert(tensors.end(), others.begin(), others.end());
  tensors.push_back(parts_->step_slice());
  for (TensorSlice& tensor : tensors) tensor.data = nullptr;
  return tensors;
}

std::vector<TensorSlice> ParameterStore::gradient_slices() const {
  return parts_->seen.fetch(sum_slices(parts_->segments));
}

}  // namespace octet::store
