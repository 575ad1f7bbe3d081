// Plans one configuration on one device.
#include "octet/planner/planner.h"

#include <algorithm>

#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"

namespace octet::planner {
namespace {

/// Returns the micro-batches to try: divisors of the step if it is fixed, else all up to 16 and powers of
/// two.
std::vector<std::int64_t> micros_of(const config::Config& config, std::int64_t world) {
  const bool follows = config.global_batch_size && !config.gradient_accumulation_steps;
  if (follows || config.gradient_accumulation_steps == config::kAutomatic) {
    return train::buildable(config::possible_micro_batches(config, world), config.cutoff_len);
  }
  std::vector<std::int64_t> all;
  for (std::int64_t m = 1; m <= 1024; m = m < 16 ? m + 1 : m * 2) all.push_back(m);
  return train::buildable(std::move(all), config.cutoff_len);
}

}  // namespace

std::size_t nccl_bytes(const config::Config& config, const PlanTarget& target) {
  if (!target.traits().has_transports || target.place.size == 1) return 0;
  const auto [asked, sums] = setup::session_wish(config).carrying;
  const bool between = target.place.nodes > 1 && asked != comm::Carrier::host;
  if (asked == comm::Carrier::nccl || between) return plan::nccl_bytes(2);
  return plan::nccl_bytes(sums == comm::Sums::nccl ? 1 : 0);
}

std::size_t Planner::outside_of(const comm::Place& place) const {
  PlanTarget target = target_;
  target.place = place;
  return comm::staging_bytes(place.size, target.kind) + nccl_bytes(config_, target) +
         plan::library_bytes(target.kind);
}

config::Batch Planner::batch(std::int64_t micro) const {
  config::Config chosen = config_;
  chosen.per_device_train_batch_size = micro;
  return config::resolve_batch(chosen, target_.place.size);
}

runtime::InstanceOptions Planner::build(const plan::Choice& choice) const {
  return train::worst_options(config_, architecture_, choice, target_.place.size);
}

plan::Memory Planner::memory(const plan::Choice& choice) const {
  return train::plan_memory(build(choice), target_.place, target_.kind);
}

std::array<store::StepMessages, 4> Planner::messages(const plan::Choice& choice) const {
  return train::plan_messages(build(choice), target_.place, target_.kind, batch(choice.micro).accumulation);
}

plan::Work Planner::work(const plan::Choice& choice, const plan::Memory& memory) const {
  plan::Work work =
      train::work_of(build(choice), memory, config_.cutoff_len, batch(choice.micro).accumulation);
  work.tokens = choice.micro * config_.cutoff_len;
  return work;
}

plan::Choice Planner::choice() const {
  const std::vector<plan::Level> levels = setup::levels_of(config_, target_.kind);
  const bool asked = config_.auto_find_batch_size || setup::leaves_recompute_open(config_);
  train::Candidates candidates = candidates_of({config_.per_device_train_batch_size}, levels);
  candidates.must_fit = asked;
  candidates.advice = [this](std::size_t bytes) { return train::ladder_advice(ladder(bytes, false), bytes); };
  if (config_.auto_find_batch_size) {
    candidates.micros =
        train::buildable(config::possible_micro_batches(config_, target_.place.size), config_.cutoff_len);
  }
  if (!asked && levels.size() == 1) return {candidates.micros.front(), levels.front()};
  return train::choose(candidates, target_.place, target_.kind, limit());
}

std::vector<train::Rung> Planner::ladder(std::size_t limit, bool whole) const {
  train::LadderOptions options{.place = target_.place, .kind = target_.kind, .limit = limit};
  if (whole) options.outside = [this](const comm::Place& place) { return outside_of(place); };
  return train::ladder(config_, architecture_, options);
}

bool Planner::fits() const {
  std::vector<std::int64_t> micros{config_.per_device_train_batch_size};
  if (config_.auto_find_batch_size)
    micros =
        train::buildable(config::possible_micro_batches(config_, target_.place.size), config_.cutoff_len);
  return train::fastest_that_fits(candidates_of(std::move(micros), setup::levels_of(config_, target_.kind)),
                                  target_.place, target_.kind, limit())
      .has_value();
}

std::vector<plan::Choice> Planner::fitting() const {
  return plan::largest_that_fit(micros_of(config_, target_.place.size), all_levels(), limit(),
                                [&](const plan::Choice& choice) { return memory(choice).bytes; });
}

std::optional<plan::Choice> Planner::best() const {
  return plan::fastest(fitting(), [&](const plan::Choice& choice) {
    const plan::Work work = train::work_of(build(choice), {}, config_.cutoff_len, 1);
    return plan::time_of(work, target_.rates).seconds / static_cast<double>(choice.micro);
  });
}

std::vector<plan::Level> Planner::all_levels() const {
  config::Config open = config_;
  open.recompute_requested = "auto";
  return setup::levels_of(open, target_.kind);
}

train::Candidates Planner::candidates_of(std::vector<std::int64_t> micros,
                                         std::vector<plan::Level> levels) const {
  return {.build = [this](const plan::Choice& choice) { return build(choice); },
          .micros = std::move(micros),
          .levels = std::move(levels),
          .length = config_.cutoff_len};
}

}  // namespace octet::planner
