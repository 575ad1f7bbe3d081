#include "octet/config/derive.h"

#include <algorithm>
#include <cmath>

#include "node.h"
#include "value.h"

namespace octet::config {
namespace {

// Returns the divisors of n nearest to `wanted`, below and above, as text.
std::string near_divisors(std::int64_t n, std::int64_t wanted) {
  std::int64_t below = 1, above = n;
  for (std::int64_t d = 1; d * d <= n; ++d) {
    if (n % d != 0) continue;
    for (const std::int64_t divisor : {d, n / d}) {
      if (divisor <= wanted) below = std::max(below, divisor);
      if (divisor >= wanted) above = std::min(above, divisor);
    }
  }
  return below == above ? std::to_string(below) : std::to_string(below) + " or " + std::to_string(above);
}

/// Upper limit of gradient_accumulation_steps.
constexpr std::int64_t kMostPasses = 1048576;

/// Samples per step that gradient_accumulation_steps: auto aims at: 4 samples x 4 micro-batches x 2 GPUs.
constexpr double kAutomaticStep = 32;

/// Returns the passes over `samples` that are nearest to kAutomaticStep samples; at least one.
std::int64_t automatic_passes(std::int64_t samples) {
  const auto passes = std::llround(kAutomaticStep / static_cast<double>(samples));
  return std::max<std::int64_t>(1, passes);
}

/// Micro-batches to try if nothing fixes the step. Larger ones enlarge the step and are hardly faster.
std::vector<std::int64_t> any_micro_batches() {
  std::vector<std::int64_t> all;
  for (std::int64_t m = 1; m <= 64; m = m < 16 ? m + 1 : m * 2) all.push_back(m);
  return all;
}

}  // namespace

Batch resolve_batch(const BatchKeys& config, std::int64_t world) {
  check(world >= 1, "a world has at least one rank");
  Batch batch{.micro = config.per_device_train_batch_size,
              .accumulation = config.gradient_accumulation_steps.value_or(1),
              .world = world};
  if (world > (std::int64_t{1} << 22))
    complain({.what = "too many ranks", .found = std::to_string(world), .fix = "use fewer ranks"});
  const std::int64_t pass = batch.micro * world;  // at most 2^20 * 2^22
  const bool automatic = batch.accumulation == kAutomatic;
  if (automatic) batch.accumulation = automatic_passes(pass);
  if (config.global_batch_size) {
    const std::int64_t global = *config.global_batch_size;
    const std::string numbers = "per_device_train_batch_size " + std::to_string(batch.micro) + " x " +
                                std::to_string(world) + (world == 1 ? " rank" : " ranks");
    if (global % pass != 0) {
      std::string fix;
      if (global % world == 0) {
        fix = "per_device_train_batch_size: " + near_divisors(global / world, batch.micro) + "; or ";
      }
      const std::int64_t down = global / pass * pass;
      fix += "global_batch_size: " + (down > 0 ? std::to_string(down) + " or " : "") +
             std::to_string(down + pass);
      complain({.what = "global_batch_size " + std::to_string(global) +
                        " is not a multiple of the micro-batches of all ranks",
                .expected = "a multiple of " + std::to_string(pass) + " (" + numbers + ")",
                .found = std::to_string(global),
                .fix = fix});
    }
    const std::int64_t accumulation = global / pass;
    if (accumulation > kMostPasses) {
      complain(
          {.what = "global_batch_size " + std::to_string(global) + " needs too many micro-batches per step",
           .expected = "at most " + std::to_string(kMostPasses) +
                       " on each rank, as for "
                       "gradient_accumulation_steps: " +
                       std::to_string(kMostPasses * pass) + " samples (" + numbers + ")",
           .found = std::to_string(accumulation),
           .fix = "give a smaller global_batch_size, or a larger per_device_train_batch_size"});
    }
    if (config.gradient_accumulation_steps && !automatic &&
        accumulation != *config.gradient_accumulation_steps) {
      complain({.what = "global_batch_size and gradient_accumulation_steps disagree",
                .expected = "gradient_accumulation_steps " + std::to_string(accumulation) + " (" +
                            std::to_string(global) + " / (" + numbers + "))",
                .found = std::to_string(*config.gradient_accumulation_steps),
                .fix = "give only one of the two"});
    }
    batch.accumulation = accumulation;
  }
  batch.global = pass * batch.accumulation;
  batch.passes = batch.accumulation;
  return batch;
}

Batch within_epoch(Batch batch, std::int64_t samples) {
  const std::int64_t pass = batch.micro * batch.world;
  batch.passes = std::min(batch.passes, std::max<std::int64_t>(1, (samples + pass - 1) / pass));
  return batch;
}

std::string automatic_step_text(const BatchKeys& config, const Batch& batch) {
  const bool automatic = config.gradient_accumulation_steps == kAutomatic;
  if (config.global_batch_size || (!automatic && !config.auto_find_batch_size)) return "";
  const auto number = [](std::int64_t n) { return std::to_string(n); };
  const bool exact = static_cast<double>(batch.global) == kAutomaticStep;
  return std::string(automatic ? "gradient_accumulation_steps: auto" : "the micro-batch that was found") +
         " makes steps of " + number(batch.global) + " samples: " + number(batch.micro) +
         " per micro-batch x " + number(batch.accumulation) + " x " + number(batch.world) +
         (batch.world == 1 ? " rank" : " ranks") + (automatic && !exact ? ", the nearest number to 32" : "") +
         (automatic && exact ? "" : "; global_batch_size sets another number");
}

std::int64_t evaluation_batch(const BatchKeys& config, std::int64_t micro) {
  return config.per_device_eval_batch_size.value_or(micro);
}

std::vector<std::int64_t> possible_micro_batches(const BatchKeys& config, std::int64_t world) {
  check(world >= 1, "a world has at least one rank");
  const bool automatic = config.gradient_accumulation_steps == kAutomatic;
  if (!config.global_batch_size && !automatic) return any_micro_batches();
  const std::int64_t global = config.global_batch_size.value_or(world * automatic_passes(world));
  if (global % world != 0) {
    complain({.what = "global_batch_size is not a multiple of the number of ranks",
              .expected = "a multiple of " + std::to_string(world),
              .found = std::to_string(global),
              .where = "global_batch_size",
              .fix = "change global_batch_size or the number of ranks"});
  }
  std::vector<std::int64_t> all;
  for (std::int64_t d = 1; d <= global / world && d <= 1048576; ++d) {
    if (global / world % d == 0) all.push_back(d);
  }
  return all;
}

std::int64_t warmup_steps(const ScheduleKeys& config, std::int64_t total) {
  if (config.warmup_steps >= 1) return static_cast<std::int64_t>(config.warmup_steps);
  const double ratio = config.warmup_steps > 0 ? config.warmup_steps : config.warmup_ratio;
  return static_cast<std::int64_t>(std::ceil(static_cast<double>(total) * ratio));
}

std::int64_t interval_steps(double value, std::int64_t total) {
  if (value >= 1) return static_cast<std::int64_t>(value);
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::ceil(static_cast<double>(total) * value)));
}

std::int64_t steps_per_epoch(std::int64_t micro_batches, std::int64_t accumulation) {
  check(micro_batches >= 0 && accumulation >= 1, "an epoch has counts of micro-batches");
  return std::max<std::int64_t>(1,
                                micro_batches / accumulation + (micro_batches % accumulation != 0 ? 1 : 0));
}

std::int64_t total_steps(const ScheduleKeys& config, std::int64_t steps_in_epoch) {
  if (config.max_steps > 0) return config.max_steps;
  const double steps = std::ceil(config.num_train_epochs * static_cast<double>(steps_in_epoch));
  if (!(steps < 9007199254740992.0)) {
    complain({.what = "num_train_epochs needs too many steps",
              .found = number_text(config.num_train_epochs),
              .fix = "lower it, or set max_steps"});
  }
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(steps));
}

bool computes_in_bf16(const PrecisionKeys& config) {
  return config.bf16 || config.pure_bf16;
}

bool leaves_storage_open(const PrecisionKeys& config) {
  return config.param_dtype == "auto" || config.grad_dtype == "auto" || config.optim_dtype == "auto";
}

std::vector<Config> storages(const Config& config) {
  if (!leaves_storage_open(config)) return {config};
  const auto with = [&config](const char* parameters, const char* gradients, const char* moments) {
    Config stored = config;
    if (stored.param_dtype == "auto") stored.param_dtype = parameters;
    if (stored.grad_dtype == "auto") stored.grad_dtype = stored.param_dtype == "bf16" ? gradients : "fp32";
    if (stored.optim_dtype == "auto") stored.optim_dtype = moments;
    return stored;
  };
  std::vector<Config> all{with("fp32", "fp32", "fp32")};
  // Adapters are small. Gradients in bf16 would also be summed in another order on other numbers of ranks.
  if (config.finetuning_type == "lora" || config.finetuning_type == "qlora") return all;
  const char* gradients = config.deterministic == "strict" ? "fp32" : "bf16";
  const bool in_bf16 = computes_in_bf16(config);
  const char* parameters = in_bf16 ? "bf16" : "fp32";
  for (const Config& next :
       {with(parameters, gradients, in_bf16 ? "bf16" : "int8"), with(parameters, gradients, "int8")}) {
    const Config& last = all.back();
    if (next.param_dtype != last.param_dtype || next.grad_dtype != last.grad_dtype ||
        next.optim_dtype != last.optim_dtype) {
      all.push_back(next);
    }
  }
  return all;
}

std::string best_figure_name(const EvaluationKeys& config) {
  const std::string name = config.metric_for_best_model.value_or("loss");
  return name.starts_with("eval_") ? name.substr(5) : name;
}

bool greater_is_better(const EvaluationKeys& config) {
  if (config.greater_is_better) return *config.greater_is_better;
  const std::string name = best_figure_name(config);
  return !name.ends_with("loss") && name != "perplexity" && name != "kl";
}

std::vector<std::string> evaluation_figures(const Config& config) {
  const std::string& stage = config.stage;
  std::vector<std::string> figures = {"loss"};
  if (stage == "pt") figures.emplace_back("perplexity");
  if (stage == "dpo" || stage == "rm" || stage == "kto")
    figures.insert(figures.end(), {"rewards/chosen", "rewards/rejected", "rewards/margins"});
  if (stage == "dpo" || stage == "rm") figures.emplace_back("rewards/accuracies");
  if (stage == "dpo" || stage == "kto") figures.insert(figures.end(), {"logps/chosen", "logps/rejected"});
  if (stage == "dpo" && config.pref_loss == "orpo")
    figures.insert(figures.end(), {"sft_loss", "odds_ratio_loss"});
  if (stage == "kto") figures.emplace_back("kl");
  if (stage == "kd") figures.insert(figures.end(), {"kd_loss", "ce_loss", "teacher_agreement"});
  if (config.compute_accuracy) figures.emplace_back("accuracy");
  return figures;
}

bool says_recompute(const MemoryKeys& config) {
  return config.recompute_requested || config.gradient_checkpointing || config.disable_gradient_checkpointing;
}

std::vector<Config> memory_choices(const Config& config) {
  std::vector<Config> all;
  for (const Config& stored : storages(config)) {
    all.push_back(stored);
    if (says_recompute(config)) continue;
    all.push_back(stored);
    all.back().recompute_requested = "auto";
  }
  return all;
}

Config with_storage_of(const Config& saved, Config config) {
  const Config first = storages(saved).front();
  if (config.param_dtype == "auto") config.param_dtype = first.param_dtype;
  // Gradients may be stored in bf16 only if the parameters are.
  if (config.grad_dtype == "auto")
    config.grad_dtype = config.param_dtype == "bf16" ? first.grad_dtype : "fp32";
  if (config.optim_dtype == "auto") config.optim_dtype = first.optim_dtype;
  return config;
}

}  // namespace octet::config
