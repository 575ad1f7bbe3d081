#include "octet/setup/run_options.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <system_error>
#include <vector>

#include "octet/base/error.h"
#include "octet/config/derive.h"
#include "octet/setup/adapters.h"

namespace octet::setup {
namespace {

// The configuration has checked the words, here as in the other files of this room.
When when(const std::string& strategy) {
  if (strategy == "steps") return When::steps;
  if (strategy == "best") return When::best;
  return strategy == "epoch" ? When::epoch : When::never;
}

DType stored_as(const std::string& dtype) {
  if (dtype == "bf16") return DType::bf16;
  return dtype == "int8" ? DType::u8 : DType::f32;
}

}  // namespace

When saves_when(const config::SaveKeys& config) {
  return when(config.save_strategy);
}

bool keeps_best(const config::SaveKeys& config) {
  return config.load_best_model_at_end || saves_when(config) == When::best;
}

bool leaves_saves_open(const config::SaveKeys& config) {
  return config.save_async == "auto" && saves_when(config) != When::never;
}

bool saves_beside(const config::SaveKeys& config) {
  return config.save_async == "true" && saves_when(config) != When::never;
}

bool saves_before_the_end(const config::Resolved& resolved, std::int64_t total_steps, std::int64_t epoch) {
  if (chooses_save_steps(resolved)) return true;
  switch (saves_when(resolved.config)) {
    case When::steps:
      return config::interval_steps(resolved.config.save_steps, total_steps) < total_steps;
    case When::epoch:
      return epoch < total_steps;
    case When::best:
      return true;
    case When::never:
      break;
  }
  return false;
}

bool chooses_memory_steps(const config::SaveKeys& config) {
  return config.memory_checkpoint_steps == config::kAutomatic;
}

bool chooses_save_steps(const config::Resolved& resolved) {
  return resolved.config.mtbf_hours && !resolved.is_set("save_steps") &&
         saves_when(resolved.config) == When::steps;
}

When evaluates_when(const config::EvaluationKeys& config) {
  return when(config.eval_strategy);
}

double evaluation_interval(const config::EvaluationKeys& config, const config::LogKeys& logs) {
  return config.eval_steps.value_or(logs.logging_steps);
}

std::int64_t steps_between_evaluations(const config::EvaluationKeys& config, const config::LogKeys& logs,
                                       std::int64_t total, std::int64_t epoch) {
  if (evaluates_when(config) == When::epoch) return std::max<std::int64_t>(1, epoch);
  return config::interval_steps(evaluation_interval(config, logs), total);
}

CastLog cast_log(const config::PrecisionKeys& config) {
  if (!config.fp8 || config.fp8_statistics == "none") return CastLog::none;
  return config.fp8_statistics == "layers" ? CastLog::layers : CastLog::worst;
}

bool is_pretraining(const config::TemplateKeys& config) {
  return config.stage == "pt";
}

bool trains_pairs(const config::TemplateKeys& config) {
  return config.stage == "dpo" || config.stage == "rm";
}

bool trains_rewards(const config::TemplateKeys& config) {
  return config.stage == "rm";
}

bool trains_judged(const config::TemplateKeys& config) {
  return config.stage == "kto";
}

bool trains_preferences(const config::TemplateKeys& config) {
  return trains_pairs(config) || trains_judged(config);
}

bool has_teacher(const config::TemplateKeys& config) {
  return config.stage == "kd";
}

void require_no_preferences(const config::TemplateKeys& config, const std::string& command) {
  if (!trains_preferences(config) && !has_teacher(config)) return;
  throw Error({.what = command + (has_teacher(config) ? " has no teacher" : " has no preferences"),
               .expected = "stage: sft or pt",
               .found = "stage: " + config.stage,
               .where = "configuration key 'stage'",
               .fix = "set stage: sft",
               .code = ExitCode::usage});
}

bool reads_references(const config::TemplateKeys& stage, const config::PreferenceKeys& config) {
  if (trains_judged(stage)) return true;
  return trains_pairs(stage) && preference_of(stage, config).reads_references();
}

bool precomputes_references(const config::TemplateKeys& stage, const config::TuningKeys& tuning,
                            const config::PreferenceKeys& config) {
  if (!reads_references(stage, config)) return false;
  const bool switches = trains_adapters(tuning) && tuning.additional_target.empty() && !config.ref_model;
  return config.precompute_ref_log_probs.value_or(!switches);
}

bool switches_adapters_off(const config::TemplateKeys& stage, const config::TuningKeys& tuning,
                           const config::PreferenceKeys& config) {
  return reads_references(stage, config) && !precomputes_references(stage, tuning, config);
}

model::TokenLoss token_loss_of(const config::TokenLossKeys& config) {
  model::TokenLoss loss{.smoothing = config.label_smoothing_factor, .by_probability = config.use_dft_loss};
  if (config.use_eaft_loss) loss.entropy_power = config.eaft_alpha;
  return loss;
}

ops::PreferenceRule preference_of(const config::TemplateKeys& stage, const config::PreferenceKeys& config) {
  using enum ops::PreferenceKind;
  if (trains_rewards(stage)) return {.kind = bradley_terry, .beta = 1};
  const std::string& loss = config.pref_loss;
  return {.kind = loss == "hinge"      ? hinge
                  : loss == "ipo"      ? ipo
                  : loss == "kto_pair" ? kto_pair
                  : loss == "orpo"     ? orpo
                  : loss == "simpo"    ? simpo
                                       : sigmoid,
          .beta = config.pref_beta,
          .smoothing = config.dpo_label_smoothing,
          .margin = config.simpo_gamma,
          .supervised = config.pref_ftx,
          .beyond = config.ld_alpha.value_or(1.0)};
}

ops::JudgementRule judgement_of(const config::PreferenceKeys& config) {
  return {.beta = config.pref_beta,
          .desirable = config.kto_chosen_weight,
          .undesirable = config.kto_rejected_weight,
          .supervised = config.pref_ftx};
}

model::TeacherLoss teacher_loss_of(const config::TeacherKeys& config) {
  using enum ops::TeacherRest;
  return {.rule = {.ratio = config.kd_ratio,
                   .beta = config.kd_beta,
                   .temperature = config.kd_temperature,
                   .rest = config.kd_rest == "zero"          ? zero
                           : config.kd_rest == "renormalise" ? renormalise
                                                             : bucket},
          .ranks = config.kd_topk};
}

data::Answers answers_of(const config::TemplateKeys& config) {
  if (trains_judged(config)) return data::Answers::judged;
  return trains_pairs(config) ? data::Answers::pairs : data::Answers::single;
}

bool is_strict(const config::MachineKeys& config) {
  return config.deterministic == "strict";
}

bool leaves_recompute_open(const config::MemoryKeys& config) {
  return config.recompute() == "auto";
}

store::Storage storage_of(const config::PrecisionKeys& config) {
  return {.parameters = stored_as(config.param_dtype),
          .gradients = stored_as(config.grad_dtype),
          .moments = stored_as(config.optim_dtype)};
}

DType export_dtype(const config::PrecisionKeys& config) {
  const std::string name = config.export_dtype.value_or(config::computes_in_bf16(config) ? "bf16" : "fp32");
  return name == "fp16" ? DType::f16 : name == "bf16" ? DType::bf16 : DType::f32;
}

std::int64_t export_bytes(const config::SaveKeys& config) {
  return static_cast<std::int64_t>(std::clamp(config.export_size * 1e9, 1.0, 1e18));
}

FaultAction fault_action(const config::FaultKeys& config) {
  return config.sdc_action == "rollback" ? FaultAction::rollback : FaultAction::stop;
}

SpikeOptions spike_options(const config::FaultKeys& config) {
  return {.loss_factor = config.loss_spike_factor,
          .norm_factor = config.grad_norm_spike_factor,
          .action = config.spike_action == "rollback" ? SpikeAction::rollback
                    : config.spike_action == "stop"   ? SpikeAction::stop
                                                      : SpikeAction::skip};
}

namespace {

std::vector<double> weights_of(const config::DatasetKeys& config) {
  std::vector<double> weights;
  for (const std::string& text : config.interleave_probs) {
    double weight = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
    if (error != std::errc() || end != text.data() + text.size()) weight = -1;  // refused with the others
    weights.push_back(weight);
  }
  if (!weights.empty() && config.mix_strategy == "concat") {
    throw Error({.what = "interleave_probs is read only when datasets are interleaved",
                 .expected = "mix_strategy: interleave_under, interleave_over or interleave_once",
                 .found = "mix_strategy: concat",
                 .where = "configuration key 'interleave_probs'",
                 .fix = "set one of these, or remove interleave_probs",
                 .code = ExitCode::usage});
  }
  return weights;
}

// Its batches of rows, its padding and its cuts, whether sequences are packed or not.
bool as_llamafactory(const config::SequenceKeys& config) {
  return config.packing_strategy == "llamafactory";
}

}  // namespace

data::DataOptions data_options(const config::DataKeys& config) {
  return {.dataset = config.dataset,
          .columns = {.messages = config.messages_column.value_or(""),
                      .prompt = config.prompt_column.value_or(""),
                      .response = config.response_column.value_or("")},
          .split = config.dataset_train_split.value_or(""),
          .dataset_dir = config.dataset_dir,
          .max_samples = config.max_samples,
          .seed = config.order_seed(),
          .answers = answers_of(config)};
}

data::MixOptions mix_options(const config::DataKeys& config) {
  return {.strategy = config.mix_strategy, .weights = weights_of(config), .seed = config.order_seed()};
}

Packing packing_of(const config::DataKeys& config) {
  if (!config.packing) return Packing::none;
  if (!as_llamafactory(config)) return Packing::best_fit;
  return is_pretraining(config) ? Packing::blocks : Packing::knapsack;
}

data::TemplateEncoderOptions encoder_options(const config::DataKeys& config, const std::string& model) {
  data::TemplateEncoderOptions options;
  options.folder = model;
  options.template_name = config.template_name;
  options.match_template = !is_pretraining(config);
  options.answers = answers_of(config);
  // LLaMA-Factory keeps one token of a packed sequence for its padding.
  const bool llamafactory = as_llamafactory(config);
  options.options.cutoff_len = config.cutoff_len - (llamafactory && config.packing ? 1 : 0);
  if (llamafactory) {
    options.text_cut = packing_of(config) == Packing::blocks ? data::TextCut::whole : data::TextCut::truncate;
  }
  options.most_pieces = config.pack_factor.value_or(0);
  options.options.mask_history = config.mask_history;
  options.options.train_on_prompt = config.train_on_prompt;
  options.options.enable_thinking = config.enable_thinking;
  options.options.default_system = config.default_system;
  options.options.preserve_thinking = config.preserve_thinking;
  options.options.tool_format = config.tool_format;
  options.options.split_special_tokens = config.split_special_tokens;
  return options;
}

}  // namespace octet::setup
