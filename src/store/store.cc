#include "octet/store/store.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "nf4_loader.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/model/layout.h"
#include "store_parts.h"
#include "store_state.h"

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

Axes axes_of(comm::Collectives& all, const ExpertAxis& experts, const GroupAxes& groups,
             const Options& options) {
  comm::Collectives& same_experts = experts.same_experts != nullptr ? *experts.same_experts : all;
  if (!has_replicas(options, all.size()))
    return {.all = all, .same_experts = same_experts, .shards = all, .replicas = nullptr};
  const int ranks = shards_of(options, all.size());
  check(groups.shards != nullptr && groups.shards->size() == ranks &&
            groups.shards->rank() == all.rank() % ranks && groups.replicas != nullptr &&
            groups.replicas->rank() == all.rank() / ranks && experts.same_experts == nullptr,
        "a store with sharding groups has the collectives of adjacent ranks, and all experts");
  return {.all = all, .same_experts = all, .shards = *groups.shards, .replicas = groups.replicas};
}

/// Returns the memory that gathers of `collectives`, and at stage 0 gradient sums, are written to.
std::vector<comm::SharedMemory> gathered_memory(const Segments& segments, const Axes& axes,
                                                const comm::Collectives& collectives) {
  std::vector<comm::SharedMemory> memory;
  const auto add = [&](void* address, std::size_t bytes) {
    if (address != nullptr && bytes > 0) memory.push_back({address, bytes});
  };
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      if (&collectives == axes.replicas) add(s.total.data, s.total.bytes(s.state_count));
      if (&axes.of(s) != &collectives) continue;
      if (s.row.gathered()) {
        add(s.gather_buffer(), static_cast<std::size_t>(s.world) * s.gather_bytes());
      } else if (s.total) {
        add(s.total.data, s.total.bytes(s.padded));
      }
    }
  }
  return memory;
}

}  // namespace

ParameterStore::Parts::Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with,
                             const Options& how, ExpertAxis shared, const GroupAxes& groups)
    : layout(std::move(of)),
      collectives(with),
      experts(std::move(shared)),
      axes(axes_of(with, experts, groups, how)),
      device(arena.device()),
      options(how),
      segments(reserve_segments(layout, arena, axes.places(), how, axes.split() ? &experts.all : nullptr)),
      fixed(segments, arena, axes, how),
      gatherer(segments, fixed.scales(), axes, device, how),
      reducer(segments, axes, device, how),
      updater(segments, arena, axes, how),
      amaxes(with, device, how),
      parameters(operands(segments, updater.scales(), fixed.scales())),
      state(segments, updater, axes, experts, device, options) {
  axes.every([&](comm::Collectives& one) {
    if (one.size() > 1) one.share(gathered_memory(segments, axes, one));
  });
  state.expect_mirrors(arena);
}

ParameterStore::ParameterStore(model::ParameterLayout layout, Arena& arena, comm::Collectives& collectives,
                               const Options& options, ExpertAxis experts, GroupAxes groups)
    : parts_(std::make_unique<Parts>(std::move(layout), arena, collectives, options, std::move(experts),
                                     groups)) {}

ParameterStore::~ParameterStore() {
  // Gathers may still write to memory that the arena is about to free. Does not wait during stack unwinding:
  // the other ranks of a gather may have failed.
  if (std::uncaught_exceptions() > parts_->exceptions_at_start) return;
  try {
    parts_->axes.every([&](comm::Collectives& collectives) {
      collectives.gather_stream().synchronize();
      collectives.reduce_stream().synchronize();
    });
    parts_->axes.every([&](comm::Collectives& collectives) {
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
  parts_->state.clear_copies();
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
  parts_->updater.finish(input, parts_->state.optimizer_steps() + 1, parts_->reducer, parts_->gatherer,
                         compute);
  parts_->stepping = false;
  parts_->finished = true;
  parts_->updating = input.update;
}

StepResult ParameterStore::collect() {
  check(parts_->finished, "a step is collected once, after it was finished");
  parts_->finished = false;
  const StepResult result = parts_->updater.result();
  if (parts_->updating && !result.skipped) parts_->state.count_update();
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
  parts_->axes.every([](comm::Collectives& collectives) {
    collectives.gather_stream().synchronize();
    collectives.reduce_stream().synchronize();
  });
}

void ParameterStore::limit_steps(const ops::StepLimits& limits) {
  parts_->updater.limit_steps(limits);
}

std::size_t ParameterStore::update_bytes() const {
  return parts_->updater.bytes();
}

std::int64_t ParameterStore::optimizer_steps() const {
  return parts_->state.optimizer_steps();
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

void ParameterStore::initialise(Stream& compute,
                                const std::function<void(const std::vector<TensorSlice>&)>& fill) {
  load_fixed(compute, fill);
  parts_->state.fill_masters(fill);
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
  parts_->state.send_needed();
  parts_->updater.make_copies(scales, parts_->gatherer, compute);
}

std::vector<TensorSlice> ParameterStore::owned_slices(const std::vector<TensorSlice>& others) const {
  return parts_->state.owned(others);
}

SnapshotSources ParameterStore::owned_places(const std::vector<TensorSlice>& others) const {
  return parts_->state.owned_places(others);
}

std::vector<TensorSlice> ParameterStore::needed_slices(const std::vector<TensorSlice>& others) const {
  return parts_->state.needed(others);
}

std::vector<TensorSlice> ParameterStore::state_tensors(const std::vector<TensorSlice>& others) const {
  return parts_->state.tensors(others);
}

std::vector<TensorSlice> ParameterStore::gradient_slices() const {
  return parts_->state.gradients();
}

}  // namespace octet::store
