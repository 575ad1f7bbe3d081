#include "octet/store/store.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "activation_amaxes.h"
#include "fixed.h"
#include "gatherer.h"
#include "inside.h"
#include "loaded_values.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/device/host_mirror.h"
#include "octet/model/build.h"
#include "reducer.h"
#include "segments.h"
#include "slices.h"
#include "updater.h"

namespace octet::store {
namespace {

std::vector<model::GroupParameters> operands(const Segments& segments, const precision::ScaleSet* trained,
                                             const precision::ScaleSet* fixed) {
  std::vector<model::GroupParameters> groups;
  for (const auto& group : segments.groups) {
    auto& parameters = groups.emplace_back();
    for (const Segment& s : group) {
      const precision::ScaleSet* scales = s.row.trained() ? trained : fixed;
      auto& weights = parameters.weights.emplace_back();
      auto& parts = parameters.parts.emplace_back();
      for (std::size_t t = 0; t < s.spec->tensors.size(); ++t) {
        const model::TensorSpec& tensor = s.spec->tensors[t];
        const auto operand = [&](std::int64_t begin, std::int64_t count, const float* scale_inv) {
          return ops::Operand{.data = s.copy + s.copy_bytes(begin),
                              .transposed = s.transposed == nullptr ? nullptr : s.transposed + begin,
                              .dtype = s.dtype,
                              .rows = count / tensor.cols,
                              .cols = tensor.cols,
                              .scale_inv = scale_inv};
        };
        parts.emplace_back();
        for (const ScaledRun& run : s.scaled[t]) {
          parts.back().push_back(operand(run.begin, run.count, scales->scale_inv(run.scale)));
        }
        weights.push_back(parts.back().size() == 1 ? parts.back().front()
                                                   : operand(tensor.offset, tensor.count(), nullptr));
        if (s.row_scales != nullptr) {
          weights.back().scale_inv = s.row_scales + row_scale_of(*s.spec, t);
          weights.back().scaling = ops::Scaling::whole_rows;
        }
        if (parts.back().size() > 1) weights.back().data = weights.back().transposed = nullptr;
      }
    }
  }
  return groups;
}

/// What a store gives to a rank that computes without the others.
class Rehearsal final : public model::ParameterSource {
 public:
  Rehearsal(const model::ParameterLayout& layout, const std::vector<model::GroupParameters>& parameters,
            Gatherer& gatherer, const Reducer& reducer)
      : layout_(layout), parameters_(parameters), gatherer_(gatherer) {
    for (std::size_t g = 0; g < layout.groups.size(); ++g) {
      gradients_.push_back(reducer.buffers(static_cast<int>(g)));
      gradients_.back().overwrite = true;
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

/// Where gathers and the sums of stage 0 go.
std::vector<comm::SharedMemory> gathered_memory(const Segments& segments) {
  std::vector<comm::SharedMemory> memory;
  const auto add = [&](void* address, std::size_t bytes) {
    if (address != nullptr && bytes > 0) memory.push_back({address, bytes});
  };
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      if (s.row.gathered()) {
        add(s.gather_buffer(), static_cast<std::size_t>(segments.world) * s.gather_bytes());
      } else if (s.total) {
        add(s.total.data, s.total.bytes(s.padded));
      }
    }
  }
  return memory;
}

}  // namespace

struct ParameterStore::Parts {
  Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with, const Options& how)
      : layout(std::move(of)),
        collectives(with),
        device(arena.device()),
        options(how),
        segments(reserve_segments(layout, arena, with.place(), how)),
        fixed(segments, arena, with, how),
        gatherer(segments, fixed.scales(), with, device, how),
        reducer(segments, with, device, how),
        updater(segments, arena, with, how),
        amaxes(with, device, how),
        parameters(operands(segments, updater.scales(), fixed.scales())),
        seen(device),
        needed(device) {
    if (with.size() > 1) with.share(gathered_memory(segments));
    expect_mirrors(arena);
  }
  /// What passes through the host's memory when the state is saved and loaded.
  void expect_mirrors(Arena& arena) {
    std::vector<TensorSlice> saved = state_slices(segments, {.own_only = true, .moments = true});
    std::vector<TensorSlice> read = state_slices(segments, {.own_only = false, .moments = true});
    if (collectives.rank() == 0) append_scales(saved);
    append_scales(read);
    arena.expect_passing("state/saved", HostMirror::bytes_for(saved, device), MemoryKind::host);
    arena.expect_passing("state/loaded", HostMirror::bytes_for(read, device), MemoryKind::host);
  }

  int groups() const { return static_cast<int>(layout.groups.size()); }
  TensorSlice step_slice() {
    return {.name = "optimizer/step",
            .dtype = DType::i64,
            .shape = {1},
            .begin = 0,
            .count = 1,
            .data = &optimizer_steps};
  }
  /// Fills the masters of a segment with fp32 values, rounded to nearest to what they are stored in.
  void fill_rounded(Segment& segment, const std::function<void(const std::vector<TensorSlice>&)>& fill) {
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
  void append_scales(std::vector<TensorSlice>& slices) {
    if (updater.scales() == nullptr) return;
    for (TensorSlice& slice : updater.scales()->state()) slices.push_back(std::move(slice));
  }

  model::ParameterLayout layout;
  comm::Collectives& collectives;
  Device& device;
  Options options;
  Segments segments;
  Fixed fixed;
  Gatherer gatherer;
  Reducer reducer;
  Updater updater;
  ActivationAmaxes amaxes;
  std::vector<model::GroupParameters> parameters;
  HostMirror seen;    ///< what owned_slices and gradient_slices gave
  HostMirror needed;  ///< what needed_slices gave, until refresh_copies takes it
  std::int64_t optimizer_steps = 0;
  int exceptions_at_start = std::uncaught_exceptions();
  bool stepping = false;  ///< between begin_step and finish
  bool finished = false;  ///< between finish and collect
  bool updating = false;  ///< the finish that is to be collected updates
};

ParameterStore::ParameterStore(model::ParameterLayout layout, Arena& arena, comm::Collectives& collectives,
                               const Options& options)
    : parts_(std::make_unique<Parts>(std::move(layout), arena, collectives, options)) {}

ParameterStore::~ParameterStore() {
  // Gathers may still be under way into memory that the arena is about to give back. Not while an error
  // unwinds: the ranks that a gather waits for may be gone.
  if (std::uncaught_exceptions() > parts_->exceptions_at_start) return;
  try {
    parts_->collectives.gather_stream().synchronize();
    parts_->collectives.reduce_stream().synchronize();
    if (parts_->collectives.size() > 1) parts_->collectives.unshare(gathered_memory(parts_->segments));
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
  check(parts_->segments.trains, "a store without gradients takes no steps");
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
  // Backward ends at the lowest group of which something is trained.
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
  check(parts_->segments.trains && !parts_->stepping, "a step is rehearsed between steps");
  return std::make_unique<Rehearsal>(parts_->layout, parts_->parameters, parts_->gatherer, parts_->reducer);
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
  check(!parts_->stepping, "copies are made anew between steps");
  parts_->needed.send();
  parts_->updater.make_copies(scales, parts_->gatherer, compute);
}

std::vector<TensorSlice> ParameterStore::owned_slices(const std::vector<TensorSlice>& others) const {
  std::vector<TensorSlice> slices = state_slices(parts_->segments, {.own_only = true, .moments = true});
  const bool first = parts_->collectives.rank() == 0;
  if (first) parts_->append_scales(slices);
  slices.insert(slices.end(), others.begin(), others.end());
  slices = parts_->seen.fetch(std::move(slices));
  if (first) slices.push_back(parts_->step_slice());
  return slices;
}

SnapshotSources ParameterStore::owned_places(const std::vector<TensorSlice>& others) const {
  SnapshotSources places{.moving = others};
  for (TensorSlice& slice : state_slices(parts_->segments, {.own_only = true, .moments = true})) {
    // Reductions write what narrow wires lose, while the backward pass goes on.
    const bool moves = slice.name.starts_with("residuals/");
    (moves ? places.moving : places.still).push_back(std::move(slice));
  }
  if (parts_->collectives.rank() != 0) return places;
  parts_->append_scales(places.still);
  places.host.push_back(parts_->step_slice());
  return places;
}

std::vector<TensorSlice> ParameterStore::needed_slices(const std::vector<TensorSlice>& others) const {
  std::vector<TensorSlice> slices = state_slices(parts_->segments, {.own_only = false, .moments = true});
  parts_->append_scales(slices);
  slices.insert(slices.end(), others.begin(), others.end());
  slices = parts_->needed.fetch(std::move(slices));
  slices.push_back(parts_->step_slice());
  return slices;
}

std::vector<TensorSlice> ParameterStore::state_tensors(const std::vector<TensorSlice>& others) const {
  std::vector<TensorSlice> tensors = state_slices(parts_->segments, {.moments = true, .whole = true});
  parts_->append_scales(tensors);
  tensors.insert(tensors.end(), others.begin(), others.end());
  tensors.push_back(parts_->step_slice());
  for (TensorSlice& tensor : tensors) tensor.data = nullptr;
  return tensors;
}

std::vector<TensorSlice> ParameterStore::gradient_slices() const {
  return parts_->seen.fetch(sum_slices(parts_->segments));
}

void ParameterStore::synchronize(Stream& compute) {
  compute.synchronize();
  parts_->updater.synchronize();
  parts_->collectives.gather_stream().synchronize();
  parts_->collectives.reduce_stream().synchronize();
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

}  // namespace octet::store
