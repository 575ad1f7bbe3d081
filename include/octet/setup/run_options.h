// Options of the steps, the output and the silent faults of a run, from the configuration.
#pragma once

#include <cstdint>

#include "octet/base/dtype.h"
#include "octet/config/config.h"
#include "octet/config/keys.h"
#include "octet/data/dataset.h"
#include "octet/data/mix.h"
#include "octet/data/template_encoder.h"
#include "octet/model/transformer.h"
#include "octet/store/placement.h"

namespace octet::setup {

/// When a run does something that it does again and again.
enum class When {
  never,
  steps,  ///< every so many steps
  epoch,  ///< at the end of each pass over the data
  best    ///< after each evaluation that improves metric_for_best_model
};
/// save_strategy.
When saves_when(const config::SaveKeys& config);
/// Whether save_total_limit does not remove the best checkpoint: load_best_model_at_end, or save_strategy:
/// best.
bool keeps_best(const config::SaveKeys& config);
/// True for save_async: auto in a run that saves: the free memory decides whether it saves during steps.
bool leaves_saves_open(const config::SaveKeys& config);
/// True for save_async: true in a run that keeps checkpoints: they are written during steps.
bool saves_beside(const config::SaveKeys& config);
/// Whether a run of so many steps saves before its last one; `epoch` is the steps of a pass over the data, 0
/// where that is not known.
bool saves_before_the_end(const config::Resolved& resolved, std::int64_t total_steps, std::int64_t epoch);
/// True for memory_checkpoint_steps: auto. The interval of checkpoints in memory follows from mtbf_hours and
/// measured times.
bool chooses_memory_steps(const config::SaveKeys& config);
/// True for mtbf_hours without save_steps: the interval of checkpoints follows from measured times.
bool chooses_save_steps(const config::Resolved& resolved);
/// eval_strategy.
When evaluates_when(const config::EvaluationKeys& config);
/// eval_steps or logging_steps; below 1 a share of all steps.
double evaluation_interval(const config::EvaluationKeys& config, const config::LogKeys& logs);
/// Returns the steps between two evaluations of a run of `total` steps, with `epoch` steps in an epoch.
std::int64_t steps_between_evaluations(const config::EvaluationKeys& config, const config::LogKeys& logs,
                                       std::int64_t total, std::int64_t epoch);

/// What rows of the log tell of casts to FP8 (fp8_statistics).
enum class CastLog { none, worst, layers };
CastLog cast_log(const config::PrecisionKeys& config);

/// stage: pt. Texts are trained, not answers.
bool is_pretraining(const config::TemplateKeys& config);
/// stage: dpo and rm. Pairs of answers are trained.
bool trains_pairs(const config::TemplateKeys& config);
/// stage: rm. A reward model is trained on pairs.
bool trains_rewards(const config::TemplateKeys& config);
/// stage: kto. Judged answers are trained.
bool trains_judged(const config::TemplateKeys& config);
/// stage: dpo, rm and kto.
bool trains_preferences(const config::TemplateKeys& config);
/// stage: kd. Tokens are trained with the distributions of a teacher.
bool has_teacher(const config::TemplateKeys& config);
/// Throws Error (usage) for a stage that trains preferences or has a teacher. `command` runs batches without
/// them.
void require_no_preferences(const config::TemplateKeys& config, const std::string& command);
/// With preferences: whether the loss reads log-probabilities of a reference.
bool reads_references(const config::TemplateKeys& stage, const config::PreferenceKeys& config);
/// Whether log-probabilities of the reference are computed before the first step.
bool precomputes_references(const config::TemplateKeys& stage, const config::TuningKeys& tuning,
                            const config::PreferenceKeys& config);
/// Whether the reference of answers is the model with its adapters switched off.
bool switches_adapters_off(const config::TemplateKeys& stage, const config::TuningKeys& tuning,
                           const config::PreferenceKeys& config);
/// deterministic: strict. The bits do not depend on the number of ranks.
bool is_strict(const config::MachineKeys& config);
/// True for recompute: auto. The memory of the device decides the recomputation.
bool leaves_recompute_open(const config::MemoryKeys& config);

/// Changes to the loss of tokens.
model::TokenLoss token_loss_of(const config::TokenLossKeys& config);
/// The loss of pairs (pref_loss and its parameters, or the loss of a reward model).
ops::PreferenceRule preference_of(const config::TemplateKeys& stage, const config::PreferenceKeys& config);
/// The loss of tokens with a teacher (stage: kd).
model::TeacherLoss teacher_loss_of(const config::TeacherKeys& config);
/// The loss of judged answers (stage: kto).
ops::JudgementRule judgement_of(const config::PreferenceKeys& config);
/// The answers of the rows of the stage.
data::Answers answers_of(const config::TemplateKeys& config);

/// The formats of masters, gradients and moments (param_dtype, grad_dtype, optim_dtype).
store::Storage storage_of(const config::PrecisionKeys& config);

/// Format and greatest file of a run's final model (export_dtype, export_size).
DType export_dtype(const config::PrecisionKeys& config);
std::int64_t export_bytes(const config::SaveKeys& config);

// Options for silent faults of bits and steps, from the configuration.

/// What becomes of a run after a check that did not agree (sdc_action).
enum class FaultAction { stop, rollback };
FaultAction fault_action(const config::FaultKeys& config);

/// What becomes of a step with a spike, or with no finite loss or gradient (spike_action).
enum class SpikeAction { skip, rollback, stop };

struct SpikeOptions {
  double loss_factor = 0;  ///< of the median loss; 0: none is a spike
  double norm_factor = 0;  ///< of the median norm; 0: none is one
  SpikeAction action = SpikeAction::skip;
};
SpikeOptions spike_options(const config::FaultKeys& config);

// Options of the data from the configuration: sets, tokens and sequences.

/// The data sets of a run. Evaluation sets have a separate list.
data::DataOptions data_options(const config::DataKeys& config);

/// How several data sets become one. Throws Error (usage) for weights that nothing reads.
data::MixOptions mix_options(const config::DataKeys& config);

/// How the configuration turns rows into tokens, for the model in the folder `model`.
data::TemplateEncoderOptions encoder_options(const config::DataKeys& config, const std::string& model);

/// How documents become the sequences that are trained.
enum class Packing {
  none,      ///< each document is one
  best_fit,  ///< whole documents, the best fit of all
  knapsack,  ///< whole documents, as LLaMA-Factory packs batches of rows
  blocks     ///< texts in a row, cut to length, like LLaMA-Factory's pre-training
};
Packing packing_of(const config::DataKeys& config);

}  // namespace octet::setup
