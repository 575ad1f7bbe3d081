#include "octet/planner/plan_report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <limits>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/config/derive.h"
#include "octet/data/template_encoder.h"
#include "octet/model/shapes.h"
#include "octet/planner/planner.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"
#include "octet/setup/model_options.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/train/fit.h"
#include "octet/train/start_checks.h"

namespace octet::planner {
namespace {

/// Returns the notes of a configuration without notes about environment variables: the planned run has
/// another environment.
config::Strings notes_of(const config::Resolved& resolved) {
  config::Strings notes;
  for (const std::string& note : resolved.notes) {
    if (!note.starts_with("environment ")) notes.push_back(note);
  }
  return notes;
}

/// Returns warnings about unusual settings. Without a configuration, omits the warnings about default
/// settings.
config::Strings doubts_of(const config::Resolved& resolved, bool configured,
                          const model::Architecture& architecture) {
  config::Strings doubts = train::doubts(resolved, architecture);
  if (!configured) {
    const config::Strings always = train::doubts(config::load(with_bf16({}), {.for_training = false}), {});
    std::erase_if(doubts,
                  [&](const std::string& doubt) { return std::ranges::find(always, doubt) != always.end(); });
  }
  return doubts;
}

/// Runs `what`. If it throws an Error with a new message, adds the message to cannot_run. The exit code is
/// the code of the first Error.
void check(PlanNotes& notes, const std::function<void()>& what) {
  try {
    what();
  } catch (const Error& e) {
    if (std::ranges::find(notes.cannot_run, e.what()) != notes.cannot_run.end()) return;
    if (notes.cannot_run.empty()) notes.code = e.code();
    notes.cannot_run.emplace_back(e.what());
  }
}

void check_folder(PlanNotes& notes, config::Config config, const std::string& folder,
                  const model::Architecture& architecture) {
  check(notes, [&] { runtime::read_model(folder); });
  if (!config.train_from_scratch) check(notes, [&] { runtime::has_weights(folder); });
  if (!path_exists(folder + "/tokenizer.json")) return;
  config.model_name_or_path = folder;
  check(notes, [&] {
    const data::TemplateEncoder encoder(setup::encoder_options(config, config.model_name_or_path));
    runtime::require_fit(encoder.tokenizer(), architecture, folder);
  });
}

}  // namespace

PlanNotes plan_notes(const config::Resolved& resolved, bool configured, const std::string& model,
                     const model::Architecture& architecture, DeviceKind kind) {
  PlanNotes notes{notes_of(resolved), doubts_of(resolved, configured, architecture), {}};
  std::error_code ignored;
  if (std::filesystem::is_directory(model, ignored))
    check_folder(notes, resolved.config, model, architecture);
  if (traits_of(kind).emulates_fp8) return notes;
  const model::Architecture shape = model::find_shape(model);
  check(notes, [&] { train::require_no_fallback(resolved.config, shape); });
  if (resolved.config.fp8_fallback == "error") return notes;
  for (std::string& line : train::fp8_fallbacks(resolved.config, shape))
    notes.doubts.push_back(std::move(line));
  return notes;
}

// Computes the figures of `trainer plan`.

namespace {

/// Returns the first memory choice of a run that fits, or else the storage with the fewest bytes.
config::Config with_memory_that_fits(const config::Config& config, const model::Architecture& architecture,
                                     const PlanTarget& target) {
  for (const config::Config& choice : config::memory_choices(config)) {
    if (Planner(choice, architecture, target).fits()) return choice;
  }
  return config::storages(config).back();
}

/// Sets save_async as the run would: true if there is room for a copy of the state.
config::Config with_saves_that_fit(config::Config config, const model::Architecture& architecture,
                                   const PlanTarget& target) {
  if (!setup::leaves_saves_open(config)) return config;
  const Planner planner(config, architecture, target);
  // The host memory of GPU nodes is unknown here. It is assumed to be unlimited.
  constexpr std::size_t host = std::numeric_limits<std::size_t>::max();
  const bool room = train::has_room_for_copy(planner.build(planner.choice()), target.place, target.kind,
                                             planner.limit(), host);
  config.save_async = room ? "true" : "false";
  return config;
}

using Consider = std::function<void(const std::string& keys, const config::Config& with)>;

/// Calls `consider` with narrower formats of the training states.
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

/// Plans a run of `model` with the configuration `asked`. Does not set `notes` and `steps` of the report.
PlanReport make_plan(const config::Config& asked, const std::string& model, const PlanTarget& target) {
  const model::Architecture architecture = model::find_shape(model);
  const config::Config config =
      with_saves_that_fit(with_memory_that_fits(asked, architecture, target), architecture, target);
  const Planner planner(config, architecture, target);
  PlanReport r{.config = config, .model = model};
  for (const plan::Choice& choice : planner.fitting()) {
    // Omits a level of recompute if a cheaper level allows the same micro-batch or a larger one.
    if (r.fitting.empty() || choice.micro > r.fitting.back().micro) r.fitting.push_back(choice);
  }
  r.choice = planner.choice();
  r.batch = planner.batch(r.choice.micro);
  r.memory = planner.memory(r.choice);
  r.staging = comm::staging_bytes(target.place.size, target.kind);
  r.nccl = planner.nccl_of(target.place);
  r.libraries = plan::library_bytes(target.kind);
  r.work = planner.work(r.choice, r.memory);
  r.time = plan::time_of(r.work, target.rates);
  r.messages = planner.messages(r.choice);
  r.on_gpus_of_one_host = target.traits().counts_as_gpu && target.place.nodes == 1;
  r.ranks_of_host = target.place.local_size;
  r.stage = static_cast<int>(config.zero_stage);
  r.group = planner.group();
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

namespace {

std::optional<train::CheckpointCount> count_of(const config::Config& config) {
  const setup::When when = setup::saves_when(config);
  const bool steps = when == setup::When::steps && !config.mtbf_hours && config.max_steps > 0;
  if (when == setup::When::never || steps) {
    const std::int64_t saves = train::saves_of_run(config, {.done = 0, .total = config.max_steps});
    return train::checkpoints_of_run(config, saves);
  }
  // Assumes that the run saves often enough to reach save_total_limit.
  if (config.save_total_limit) return train::checkpoints_of_run(config, INT64_MAX / 2);
  return std::nullopt;
}

}  // namespace

DiskPlan plan_disk(const PlanReport& report, const PlanTarget& target) {
  config::Resolved resolved{.config = report.config};
  config::Config& config = resolved.config;
  config.model_name_or_path = report.model;
  const model::Architecture architecture = model::find_shape(report.model);
  train::RunOutline outline{.tensors = train::checkpoint_tensors(
                                train::worst_options(config, architecture, report.choice, target.place.size),
                                target.place, target.kind),
                            .config_yaml = resolved.to_yaml(),
                            .adapters = {},
                            .step = std::max<std::int64_t>(0, config.max_steps),
                            .world = target.place.size};
  if (setup::trains_adapters(config))
    outline.adapters = setup::adapter_config(setup::adapter_wish(config), architecture, "");
  return {.files = train::files_of_run(config, architecture, outline),
          .step = outline.step,
          .checkpoints = count_of(config)};
}

}  // namespace octet::planner
