// The figures of `trainer plan`.
#include "plan_report.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "octet/model/shapes.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/fit.h"
#include "octet/train/ladder.h"

namespace octet::cli {
namespace {

/// Micro-batches worth a look: those that the step divides into; else all up to 16, and powers of two.
std::vector<std::int64_t> micros_of(const config::Config& config, std::int64_t world) {
  const bool follows = config.global_batch_size && !config.gradient_accumulation_steps;
  if (follows || config.gradient_accumulation_steps == config::kAutomatic) {
    return train::buildable(config::possible_micro_batches(config, world), config.cutoff_len);
  }
  std::vector<std::int64_t> all;
  for (std::int64_t m = 1; m <= 1024; m = m < 16 ? m + 1 : m * 2) all.push_back(m);
  return train::buildable(std::move(all), config.cutoff_len);
}

/// What NCCL takes: inside a host it carries (gathers and reductions, each on a communicator of its own) and
/// sums only where it is asked to, between hosts it carries where it can.
std::size_t nccl_bytes(const config::Config& config, const PlanTarget& target) {
  if (target.kind != DeviceKind::cuda || target.place.size == 1) return 0;
  const auto [asked, sums] = setup::session_wish(config).carrying;
  const bool between = target.place.nodes > 1 && asked != comm::Carrier::host;
  if (asked == comm::Carrier::nccl || between) return plan::nccl_bytes(2);
  return plan::nccl_bytes(sums == comm::Sums::nccl ? 1 : 0);
}

/// One configuration on one device.
class Planner {
 public:
  Planner(const config::Config& config, const model::Architecture& architecture, const PlanTarget& target)
      : config_(config), architecture_(architecture), target_(target) {}

  std::size_t outside() const { return outside_of(target_.place); }
  /// What is taken beside the engine's memory where the ranks are others.
  std::size_t outside_of(const comm::Place& place) const {
    PlanTarget target = target_;
    target.place = place;
    return comm::staging_bytes(place.size, target.kind) + nccl_bytes(config_, target) +
           plan::library_bytes(target.kind);
  }
  std::size_t limit() const { return target_.memory - std::min(target_.memory, outside()); }

  config::Batch batch(std::int64_t micro) const {
    config::Config chosen = config_;
    chosen.per_device_train_batch_size = micro;
    return config::resolve_batch(chosen, target_.place.size);
  }
  runtime::InstanceOptions build(const plan::Choice& choice) const {
    return train::worst_options(config_, architecture_, choice, target_.place.size);
  }
  plan::Memory memory(const plan::Choice& choice) const {
    return train::plan_memory(build(choice), target_.place, target_.kind);
  }
  std::array<store::StepMessages, 4> messages(const plan::Choice& choice) const {
    return train::plan_messages(build(choice), target_.place, target_.kind, batch(choice.micro).accumulation);
  }

  /// What the run itself would take.
  plan::Choice choice() const {
    const std::vector<plan::Level> levels = setup::levels_of(config_, target_.kind);
    const bool asked = config_.auto_find_batch_size || setup::leaves_recompute_open(config_);
    train::Candidates candidates = candidates_of({config_.per_device_train_batch_size}, levels);
    candidates.must_fit = asked;
    candidates.advice = [this](std::size_t bytes) {
      return train::ladder_advice(ladder(bytes, false), bytes);
    };
    if (config_.auto_find_batch_size) {
      candidates.micros =
          train::buildable(config::possible_micro_batches(config_, target_.place.size), config_.cutoff_len);
    }
    if (!asked && levels.size() == 1) return {candidates.micros.front(), levels.front()};
    return train::choose(candidates, target_.place, target_.kind, limit());
  }
  /// What to change where a rank has so many bytes: for all that it takes, or for what is reserved alone.
  std::vector<train::Rung> ladder(std::size_t limit, bool whole) const {
    train::LadderOptions options{.place = target_.place, .kind = target_.kind, .limit = limit};
    if (whole) options.outside = [this](const comm::Place& place) { return outside_of(place); };
    return train::ladder(config_, architecture_, options);
  }
  /// Whether what the run itself would take fits.
  bool fits() const {
    std::vector<std::int64_t> micros{config_.per_device_train_batch_size};
    if (config_.auto_find_batch_size)
      micros =
          train::buildable(config::possible_micro_batches(config_, target_.place.size), config_.cutoff_len);
    return train::fastest_that_fits(candidates_of(std::move(micros), setup::levels_of(config_, target_.kind)),
                                    target_.place, target_.kind, limit())
        .has_value();
  }
  /// The largest micro-batch at each level.
  std::vector<plan::Choice> fitting() const {
    return plan::largest_that_fit(micros_of(config_, target_.place.size), all_levels(), limit(),
                                  [&](const plan::Choice& choice) { return memory(choice).bytes; });
  }
  /// The fastest of all that fit, or nothing.
  std::optional<plan::Choice> best() const {
    return plan::fastest(fitting(), [&](const plan::Choice& choice) {
      return plan::time_of(train::work_of(build(choice), {}, config_.cutoff_len, 1)).seconds /
             static_cast<double>(choice.micro);
    });
  }

 private:
  std::vector<plan::Level> all_levels() const {
    config::Config open = config_;
    open.recompute_requested = "auto";
    return setup::levels_of(open, target_.kind);
  }
  train::Candidates candidates_of(std::vector<std::int64_t> micros, std::vector<plan::Level> levels) const {
    return {.build = [this](const plan::Choice& choice) { return build(choice); },
            .micros = std::move(micros),
            .levels = std::move(levels),
            .length = config_.cutoff_len};
  }

  const config::Config& config_;
  const model::Architecture& architecture_;
  const PlanTarget& target_;
};

/// As the run would store its states: in the first way that fits, or else in the last.
config::Config with_storage_that_fits(const config::Config& config, const model::Architecture& architecture,
                                      const PlanTarget& target) {
  const std::vector<config::Config> all = config::storages(config);
  for (const config::Config& stored : all) {
    if (&stored == &all.back() || Planner(stored, architecture, target).fits()) return stored;
  }
  return config;
}

/// As the run would save, once it has chosen its sizes.
config::Config with_saves_that_fit(config::Config config, const model::Architecture& architecture,
                                   const PlanTarget& target) {
  if (!setup::leaves_saves_open(config)) return config;
  const Planner planner(config, architecture, target);
  // What memory the GPUs' host has is not asked.
  constexpr std::size_t host = std::numeric_limits<std::size_t>::max();
  const bool room = train::has_room_for_copy(planner.build(planner.choice()), target.place, target.kind,
                                             planner.limit(), host);
  config.save_async = room ? "true" : "false";
  return config;
}

using Consider = std::function<void(const std::string& keys, const config::Config& with)>;

/// Narrower formats of what is trained.
void storage_alternatives(const config::Config& config, const Consider& consider) {
  const store::Storage stored = setup::storage_of(config);
  config::Config with = config;
  with.optim_dtype = "int8";
  if (stored.moments != DType::u8) consider("optim_dtype=int8", with);
  if (stored.parameters == DType::bf16 || !(with.bf16 || with.pure_bf16) || setup::is_strict(config)) return;
  with.param_dtype = with.grad_dtype = "bf16";
  consider("param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8", with);
  with.optim_dtype = "bf16";
  consider("param_dtype=bf16 grad_dtype=bf16 optim_dtype=bf16", with);
}

/// Ways to hold less, from the one that changes least.
std::vector<Alternative> alternatives(const config::Config& asked, const config::Config& config,
                                      const model::Architecture& architecture, const PlanTarget& target) {
  std::vector<Alternative> all;
  const auto consider = [&](const std::string& keys, const config::Config& with) {
    const Planner planner(with, architecture, target);
    const auto best = planner.best();
    if (best) all.push_back({keys, *best, planner.memory(*best).bytes + planner.outside()});
  };
  storage_alternatives(config, consider);
  if (!setup::trains_adapters(config) && !config.train_from_scratch) {
    config::Config with = asked;
    with.finetuning_type = "lora";
    consider("finetuning_type=lora", config::storages(with).front());
    with.quantization_bit = 4;
    consider("finetuning_type=lora quantization_bit=4", config::storages(with).front());
  }
  return all;
}

}  // namespace

std::array<double, 4> PlanReport::seconds_over(const plan::Link& link) const {
  std::array<double, 4> seconds{};
  for (std::size_t s = 0; s < messages.size(); ++s) {
    const std::int64_t between = messages[s].between_nodes();
    const std::int64_t carried = link.between_hosts ? between : messages[s].bytes() - between;
    seconds[s] = plan::message_seconds(static_cast<double>(carried), link, ranks_of_host);
  }
  return seconds;
}

double PlanReport::message_seconds() const {
  return on_gpus_of_one_host ? seconds_over(plan::links().front())[static_cast<std::size_t>(stage)] : 0;
}

PlanReport make_plan(const config::Config& asked, const std::string& model, const PlanTarget& target) {
  const model::Architecture architecture = model::find_shape(model);
  model::require_trainable(architecture, model);
  const config::Config config =
      with_saves_that_fit(with_storage_that_fits(asked, architecture, target), architecture, target);
  const Planner planner(config, architecture, target);
  PlanReport r{.config = config, .model = model};
  for (const plan::Choice& choice : planner.fitting()) {
    // A level that takes no larger micro-batch than a cheaper one is no use.
    if (r.fitting.empty() || choice.micro > r.fitting.back().micro) r.fitting.push_back(choice);
  }
  r.choice = planner.choice();
  r.batch = planner.batch(r.choice.micro);
  r.memory = planner.memory(r.choice);
  r.staging = comm::staging_bytes(target.place.size, target.kind);
  r.nccl = nccl_bytes(config, target);
  r.libraries = plan::library_bytes(target.kind);
  r.work = train::work_of(planner.build(r.choice), r.memory, config.cutoff_len, r.batch.accumulation);
  r.work.tokens = r.choice.micro * config.cutoff_len;  // evaluations may have more
  r.time = plan::time_of(r.work);
  r.messages = planner.messages(r.choice);
  r.on_gpus_of_one_host = target.kind == DeviceKind::cuda && target.place.nodes == 1;
  r.ranks_of_host = target.place.local_size;
  r.stage = static_cast<int>(config.zero_stage);
  r.fp8 = plan::fp8_warning(r.work);
  if (r.total() <= target.memory) return r;
  r.ladder = planner.ladder(target.memory, true);
  r.alternatives = alternatives(asked, config, architecture, target);
  return r;
}

}  // namespace octet::cli
