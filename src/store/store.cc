#include "octet/store/store.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "nf4_loader.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/model/layout.h"
#include "slices.h"
#include "store_parts.h"

namespace octet::store {
namespace {

/// Parameter source for a rank that computes without the others.
class Rehearsal final : public model::ParameterSource {
 public:
  Rehearsal(const model::ParameterLayout& layout, const std::vector<model::GroupParameters>& parameters,
            Gatherer& gatherer, const Reducer& reducer)
      : layout_(layout), parameters_(parameters), gatherer_(gatherer) {
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      gradients_.push_back(reducer.buffers(static_cast<int>(g)));
      gradients_.back().set_overwrite(true);
    }
  }
  const model::ParameterLayout& layout() const override { return layout_; }
  const model::GroupParameters& acquire(int group, model::Pass pass, Stream& compute) override {
    gatherer_.rehearse(group, pass, compute);
    return parameters_[static_cast<std::size_t>(group)];
  }
  void release(int, model::Pass, Stream&) override {}
  void blocks_done(Stream&) override {}
  const model::GroupGradients& gradients(int group, Stream&) override {
    return gradients_[static_cast<std::size_t>(group)];
  }
  void give_back(int, Stream&) override {}

 private:
  const model::ParameterLayout& layout_;
  const std::vector<model::GroupParameters>& parameters_;
  Gatherer& gatherer_;
  std::vector<model::GroupGradients> gradients_;
};

}  // namespace

ParameterStore::ParameterStore(model::ParameterLayout layout, Arena& arena, comm::Collectives& collectives,
                               const Options& options, ExpertAxis experts)
    : parts_(std::make_unique<Parts>(std::move(layout), arena, collectives, options, std::move(experts))) {}

ParameterStore::~ParameterStore() {
  // Gathers may still write to memory that the arena is about to free. Does not wait during stack unwinding:
  // the other ranks of a gather may have failed.
  if (std::uncaught_exceptions() > parts_->exceptions_at_start) return;
  try {
    parts_->axes.each([&](comm::Collectives& collectives) {
      collectives.gather_stream().synchronize();
      collectives.reduce_stream().synchronize();
    });
    parts_->axes.each([&](comm::Collectives& collectives) {
      if (collectives.size() > 1)
        collectives.unshare(gathered_memory(parts_->segments, parts_->axes, collectives));
    });
  } catch (const std::exception& error) {
    log::warn(std::string("messages of a parameter store that ends: ") + error.what());
  }
}

const model::ParameterLayout& ParameterStore::layout() const {
  return parts_->layout;
}

const model::GroupParameters& ParameterStore::acquire(int group, model::Pass pass, Stream& compute) {
  parts_->gatherer.acquire(group, pass, compute);
  return parts_->parameters[static_cast<std::size_t>(group)];
}

void ParameterStore::release(int group, model::Pass, Stream& compute) {
  parts_->gatherer.release(group, compute);
}

const model::GroupGradients& ParameterStore::gradients(int group, Stream& compute) {
  return parts_->reducer.gradients(group, compute);
}

void ParameterStore::give_back(int group, Stream& compute) {
  parts_->reducer.give_back(group, compute);
}

void ParameterStore::begin_step(int micro_batches) {
  check(parts_->segments.trains, "only a store with gradients updates parameters");
  check(!parts_->stepping && !parts_->finished, "a step begins after the one before it was collected");
  parts_->stepping = true;
  parts_->seen.clear();
  parts_->reducer.begin_step(micro_batches);
}

void ParameterStore::begin_micro_batch(int index, Stream& compute, precision::ScaleSet* activations) {
  check(parts_->stepping, "micro-batches belong to a step");
  parts_->amaxes.begin(activations);
  parts_->reducer.begin_micro_batch(index);
  parts_->gatherer.ahead(compute);
}

void ParameterStore::contribute_nothing(int group, Stream& compute) {
  parts_->reducer.contribute_nothing(group, compute);
}

void ParameterStore::contribute_nothing(Stream& compute) {
  const int head = parts_->groups() - 1;
  for (int g = 0; g <= head; ++g) {
    if (g == head) blocks_done(compute);
    acquire(g, model::Pass::forward, compute);
    release(g, model::Pass::forward, compute);
  }
  // Backward ends at the lowest group with trained segments.
  for (int g = parts_->groups() - 1; g >= model::lowest_trained_group(parts_->layout); --g) {
    acquire(g, model::Pass::backward, compute);
    contribute_nothing(g, compute);
    release(g, model::Pass::backward, compute);
  }
}

void ParameterStore::pass_by(Stream& compute) {
  for (int g = 0; g < parts_->groups(); ++g) {
    acquire(g, model::Pass::forward, compute);
    release(g, model::Pass::forward, compute);
  }
}

void ParameterStore::blocks_done(Stream& compute) {
  parts_->amaxes.blocks_done(compute);
}

void ParameterStore::end_micro_batch(Stream& compute) {
  parts_->reducer.end_micro_batch();
  parts_->amaxes.end(compute);
}

void ParameterStore::finish(const StepInput& input, Stream& compute) {
  check(parts_->stepping && parts_->reducer.complete(), "a step is finished after its last micro-batch");
  parts_->updater.finish(input, parts_->optimizer_steps + 1, parts_->reducer, parts_->gatherer, compute);
  parts_->stepping = false;
  parts_->finished = true;
  parts_->updating = input.update;
}

StepResult ParameterStore::collect() {
  check(parts_->finished, "a step is collected once, after it was finished");
  parts_->finished = false;
  const StepResult result = parts_->updater.result();
  if (parts_->updating && !result.skipped) ++parts_->optimizer_steps;
  if (result.skipped || !parts_->updating) parts_->reducer.forget_losses();
  return result;
}

std::unique_ptr<model::ParameterSource> ParameterStore::rehearsal() {
  check(parts_->segments.trains && !parts_->stepping, "a rehearsal runs between two steps");
  return std::make_unique<Rehearsal>(parts_->layout, parts_->parameters, parts_->gatherer, parts_->reducer);
}

void ParameterStore::synchronize(Stream& compute) {
  compute.synchronize();
  parts_->updater.synchronize();
  parts_->axes.each([](comm::Collectives& collectives) {
    collectives.gather_stream().synchronize();
    collectives.reduce_stream().synchronize();
  });
}

void ParameterStore::limit_steps(const ops::StepLimits& limits) {
  parts_->updater.limit_steps(limits);
}

Hashes::Inside Hashes::inside_of(ParameterStore& store) {
  ParameterStore::Parts& parts = *store.parts_;
  return {.store = store,
          .layout = parts.layout,
          .parameters = parts.parameters,
          .segments = parts.segments,
          .fixed = parts.fixed,
          .gatherer = parts.gatherer,
          .reducer = parts.reducer,
          .updater = parts.updater,
          .device = parts.device,
          .policy = policy_of(parts.options, parts.collectives.size()),
          .keeps_transposed = parts.options.transposed == TransposedWeights::kept};
}

std::size_t ParameterStore::update_bytes() const {
  return parts_->updater.bytes();
}

std::int64_t ParameterStore::optimizer_steps() const {
  return parts_->optimizer_steps;
}

const precision::ScaleSet* ParameterStore::weight_scales() const {
  return parts_->updater.scales();
}

void ParameterStore::watch_casts(bool on) {
  parts_->updater.watch_casts(on);
}

void ParameterStore::collect_casts(Stream& compute) {
  parts_->updater.collect_casts(compute);
}

std::vector<precision::CastRow> ParameterStore::cast_rows() const {
  return parts_->updater.cast_rows();
}

// The state of a store: initialisation, and slices for checkpoints.

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
