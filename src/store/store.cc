#include "octet/store/store.h"

#include <exception>
#include <string>
#include <utility>

#include "inside.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
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

}  // namespace octet::store
