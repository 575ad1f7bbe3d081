// Computes the figures of `trainer plan`.
#include "octet/planner/report.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "octet/base/error.h"
#include "octet/config/derive.h"
#include "octet/model/shapes.h"
#include "octet/planner/planner.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/fit.h"

namespace octet::planner {
namespace {

/// Returns the first memory choice of a run that fits, or else the storage with the fewest bytes.
config::Config with_memory_that_fits(const config::Config& config, const model::Architecture& architecture,
                                     const PlanTarget& target) {
  for (const config::Config& choice : config::memory_choices(config)) {
    if (Planner(choice, architecture, target).fits()) return choice;
  }
  return config::storages(config).back();
}

/// Sets save_async like the run does after it has chosen its sizes.
config::Config with_saves_that_fit(config::Config config, const model::Architecture& architecture,
                                   const PlanTarget& target) {
  if (!setup::leaves_saves_open(config)) return config;
  const Planner planner(config, architecture, target);
  // The host memory of GPU nodes is unknown here and taken as unlimited.
  constexpr std::size_t host = std::numeric_limits<std::size_t>::max();
  const bool room = train::has_room_for_copy(planner.build(planner.choice()), target.place, target.kind,
                                             planner.limit(), host);
  config.save_async = room ? "true" : "false";
  return config;
}

using Consider = std::function<void(const std::string& keys, const config::Config& with)>;

/// Considers narrower formats of the training states.
void storage_alternatives(const config::Config& config, const Consider& consider) {
  const store::Storage stored = setup::storage_of(config);
  config::Config with = config;
  with.optim_dtype = "int8";
  if (stored.moments != DType::u8) consider("optim_dtype=int8", with);
  if (stored.parameters == DType::bf16 || !config::computes_in_bf16(with) || setup::is_strict(config)) return;
  with.param_dtype = with.grad_dtype = "bf16";
  consider("param_dtype=bf16 grad_dtype=bf16 optim_dtype=int8", with);
  with.optim_dtype = "bf16";
  consider("param_dtype=bf16 grad_dtype=bf16 optim_dtype=bf16", with);
}

/// Returns ways to save memory; the least intrusive comes first.
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

/// Returns the steps of a run from max_steps or from `tokens` (0: not given); nullopt if neither is set.
/// Throws Error (usage) if both are set.
std::optional<std::int64_t> steps_of_run(const config::Config& config, double tokens,
                                         std::int64_t tokens_per_step) {
  if (tokens <= 0) return config.max_steps > 0 ? std::optional(config.max_steps) : std::nullopt;
  if (config.max_steps > 0) {
    throw Error({.what = "max_steps and tokens both set the length of the run",
                 .expected = "max_steps or tokens, not both",
                 .found = "max_steps " + std::to_string(config.max_steps) + ", tokens " +
                          std::to_string(static_cast<std::int64_t>(tokens)),
                 .where = "command line",
                 .fix = "give one of them",
                 .code = ExitCode::usage});
  }
  return static_cast<std::int64_t>(std::ceil(tokens / static_cast<double>(tokens_per_step)));
}

/// Plans a run of `model` with `asked`; `notes` and `steps` are not filled.
PlanReport make_plan(const config::Config& asked, const std::string& model, const PlanTarget& target) {
  const model::Architecture architecture = model::find_shape(model);
  const config::Config config =
      with_saves_that_fit(with_memory_that_fits(asked, architecture, target), architecture, target);
  const Planner planner(config, architecture, target);
  PlanReport r{.config = config, .model = model};
  for (const plan::Choice& choice : planner.fitting()) {
    // A level is useless if a cheaper level fits a micro-batch at least as large.
    if (r.fitting.empty() || choice.micro > r.fitting.back().micro) r.fitting.push_back(choice);
  }
  r.choice = planner.choice();
  r.batch = planner.batch(r.choice.micro);
  r.memory = planner.memory(r.choice);
  r.staging = comm::staging_bytes(target.place.size, target.kind);
  r.nccl = nccl_bytes(config, target);
  r.libraries = plan::library_bytes(target.kind);
  r.work = planner.work(r.choice, r.memory);
  r.time = plan::time_of(r.work, target.rates);
  r.messages = planner.messages(r.choice);
  r.on_gpus_of_one_host = target.traits().counts_as_gpu && target.place.nodes == 1;
  r.ranks_of_host = target.place.local_size;
  r.stage = static_cast<int>(config.zero_stage);
  r.fp8 = plan::fp8_warning(r.work, target.rates);
  r.levels = compare_levels(planner, target, r.choice.micro);
  r.stages = compare_stages(config, architecture, target, r.choice, r.messages);
  if (r.total() <= target.memory) return r;
  r.ladder = planner.ladder(target.memory, true);
  r.alternatives = alternatives(asked, config, architecture, target);
  return r;
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

std::array<double, 4> PlanReport::exposed_over(const plan::Link& link) const {
  std::array<double, 4> seconds{};
  for (std::size_t s = 0; s < messages.size(); ++s)
    seconds[s] =
        plan::exposed_seconds(sending_over(messages[s], link), time, batch.accumulation, link, ranks_of_host);
  return seconds;
}

double PlanReport::cost_per_step() const {
  constexpr double kHour = 3600;
  return config.gpu_hour_price.value_or(0) * static_cast<double>(batch.world) * floor_seconds() / kHour;
}

double PlanReport::message_seconds() const {
  return on_gpus_of_one_host ? seconds_over(plan::links().front())[static_cast<std::size_t>(stage)] : 0;
}

PlanReport plan_run(PlanWish wish, const PlanTarget& target) {
  config::Config& config = wish.resolved.config;
  // The number of steps per epoch is unknown without the data, so only max_steps is used.
  if (setup::leaves_saves_open(config) && config.max_steps > 0 &&
      !setup::saves_before_the_end(wish.resolved, config.max_steps, 0))
    config.save_async = "false";
  PlanReport report = make_plan(config, wish.model, target);
  report.steps = steps_of_run(config, wish.tokens, report.tokens_per_step());
  report.notes =
      plan_notes(wish.resolved, wish.configured, wish.model, report.work.architecture, target.kind);
  return report;
}

}  // namespace octet::planner
