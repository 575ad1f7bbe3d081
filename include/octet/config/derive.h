// Values that follow from the configuration and from facts of the run, like the world size.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/config/config.h"

namespace octet::config {

/// The composition of an optimizer step.
struct Batch {
  std::int64_t micro = 1;         ///< samples of one micro-batch on one rank
  std::int64_t accumulation = 1;  ///< micro-batches per step on one rank
  std::int64_t world = 1;
  std::int64_t global = 1;  ///< samples per optimizer step: the product of the three
  /// Micro-batches that a rank runs per step: accumulation, or fewer if an epoch has fewer samples.
  std::int64_t passes = 1;
};

/// Computes the accumulation from per_device_train_batch_size, gradient_accumulation_steps, global_batch_size
/// and the world size. Throws Error if they do not agree, with numbers that do. With
/// gradient_accumulation_steps: auto and no global_batch_size, a step has as near to 32 samples as whole
/// micro-batches of all ranks allow.
Batch resolve_batch(const BatchKeys& config, std::int64_t world);

/// Returns `batch` with at most as many passes as the samples of an epoch fill, because a step ends with its
/// epoch.
Batch within_epoch(Batch batch, std::int64_t samples);

/// Returns a sentence about the chosen step for gradient_accumulation_steps: auto or an automatic
/// micro-batch. Returns "" if the configuration sets the step.
std::string automatic_step_text(const BatchKeys& config, const Batch& batch);

/// Returns the samples of an evaluation batch on a rank with training micro-batches of `micro` samples.
std::int64_t evaluation_batch(const BatchKeys& config, std::int64_t micro);

/// Returns the name of metric_for_best_model without eval_; loss if it is not set.
std::string best_figure_name(const EvaluationKeys& config);
/// Whether larger values of metric_for_best_model are better: greater_is_better. If it is not set, smaller
/// values are better for names that end in loss, as in transformers, and for perplexity and kl.
bool greater_is_better(const EvaluationKeys& config);
/// Returns the figures of an evaluation that metric_for_best_model can name, without eval_.
std::vector<std::string> evaluation_figures(const Config& config);

/// Whether param_dtype, grad_dtype or optim_dtype is auto, so that device memory decides.
bool leaves_storage_open(const PrecisionKeys& config);

/// Returns the configuration with each way to store states that `auto` in these three keys allows, largest
/// first: all in fp32; all in bf16 with stochastic rounding; moments in 8 bits. Keys that are set are kept.
std::vector<Config> storages(const Config& config);

/// Whether a key sets recomputation.
bool says_recompute(const MemoryKeys& config);

/// Returns the configurations that a run tries until one fits in memory: each of storages(). If no key sets
/// recomputation, each is followed by itself with `recompute: auto`, because recomputation changes no numbers
/// and a lower precision does.
std::vector<Config> memory_choices(const Config& config);

/// Returns `config` with the storage of the run that wrote `saved` for the keys that are auto. Gradients are
/// in fp32 unless parameters are in bf16.
Config with_storage_of(const Config& saved, Config config);

/// Returns the possible micro-batches in ascending order: the divisors of a rank's share of
/// global_batch_size. With gradient_accumulation_steps: auto and no global_batch_size, the step is the
/// multiple of `world` nearest to 32. If neither is set, returns 1 to 16, 32 and 64. Throws Error if `world`
/// does not divide global_batch_size.
std::vector<std::int64_t> possible_micro_batches(const BatchKeys& config, std::int64_t world);

/// Returns whether computations outside of FP8 are in bf16; otherwise they are in fp32.
bool computes_in_bf16(const PrecisionKeys& config);

/// Warm-up steps of a run of `total` optimizer steps: warmup_steps when it is at least 1, else
/// ceil(total x ratio) with warmup_steps below 1, or warmup_ratio, as ratio (as transformers does).
std::int64_t warmup_steps(const ScheduleKeys& config, std::int64_t total);

/// Returns an interval in steps, for keys like logging_steps, save_steps and eval_steps. Values below 1 are a
/// share of `total`, rounded up. The result is at least 1.
std::int64_t interval_steps(double value, std::int64_t total);

/// Returns the optimizer steps of an epoch with `micro_batches` micro-batches per rank, at least 1. A partial
/// group at the end of an epoch is a step, too.
std::int64_t steps_per_epoch(std::int64_t micro_batches, std::int64_t accumulation);

/// Returns the optimizer steps of the run: max_steps, or ceil(num_train_epochs x steps_in_epoch), at least 1.
std::int64_t total_steps(const ScheduleKeys& config, std::int64_t steps_in_epoch);

/// Returns the notes of a resolved configuration with the numbers of ranks and hosts filled in for their
/// placeholders.
Strings notes_of(const Resolved& resolved, std::int64_t ranks, std::int64_t hosts);

}  // namespace octet::config
