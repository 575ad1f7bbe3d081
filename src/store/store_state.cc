#include "store_state.h"

#include <iterator>
#include <utility>

#include "octet/base/dtype.h"
#include "slices.h"

namespace octet::store {

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
