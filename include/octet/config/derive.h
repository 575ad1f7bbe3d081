// Values that follow from the configuration and from what only the run knows.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/config/config.h"

namespace octet::config {

/// How an optimizer step is made up.
struct Batch {
  std::int64_t micro = 1;         ///< samples of one micro-batch on one rank
  std::int64_t accumulation = 1;  ///< micro-batches of a step on one rank
  std::int64_t world = 1;
  std::int64_t global = 1;  ///< samples of an optimizer step: the product of the three
  /// Micro-batches that a rank runs in a step: accumulation, or fewer if an epoch fills no more.
  std::int64_t passes = 1;
};

/// Works out the accumulation from per_device_train_batch_size, gradient_accumulation_steps,
/// global_batch_size and the world size. Throws Error when they do not agree, naming numbers that do. With
/// gradient_accumulation_steps: auto and no global_batch_size a step has the number of samples nearest to 32
/// that whole micro-batches of all ranks come to.
Batch resolve_batch(const Config& config, std::int64_t world);

/// Returns `batch` with no more passes than the samples of an epoch fill, because a step ends with its epoch.
Batch within_epoch(Batch batch, std::int64_t samples);

/// What gradient_accumulation_steps: auto came to, or a micro-batch that was found beside a number of them,
/// in a sentence; empty where the configuration says the step.
std::string automatic_step_text(const Config& config, const Batch& batch);

/// Samples of an evaluation batch on a rank whose micro-batches of training have `micro`.
std::int64_t evaluation_batch(const Config& config, std::int64_t micro);

/// Whether param_dtype, grad_dtype or optim_dtype is left to the device's memory.
bool leaves_storage_open(const Config& config);

/// The configuration with every way to store states that `auto` in these three keys allows, from the one that
/// holds most: fp32; all in bf16, rounded stochastically; moments in 8 bits. Keys that are set stay.
std::vector<Config> storages(const Config& config);

/// Whether a key says what is recomputed.
bool says_recompute(const Config& config);

/// Returns what a run tries in turn until its memory suffices: each of storages(). If no key says what is
/// recomputed, each is followed by itself with `recompute: auto`, since recomputation changes no numbers and
/// a lower precision does.
std::vector<Config> memory_choices(const Config& config);

/// `config` with what the run that wrote `saved` stored its states in, where it is left open.
Config with_storage_of(const Config& saved, Config config);

/// Micro-batches that a step of global_batch_size divides into among `world` ranks, ascending: of the
/// multiple of the ranks nearest to 32 where gradient_accumulation_steps is auto instead. Where that is a
/// number, the step follows from what is found: 1 to 16, 32 and 64. Throws Error when global_batch_size does
/// not divide among the ranks.
std::vector<std::int64_t> possible_micro_batches(const Config& config, std::int64_t world);

/// Warm-up steps of a run of `total` optimizer steps: warmup_steps when it is at least 1, else
/// ceil(total x ratio) with warmup_steps below 1, or warmup_ratio, as ratio (as transformers does).
std::int64_t warmup_steps(const Config& config, std::int64_t total);

/// An interval such as logging_steps, save_steps, eval_steps: a count, or below 1 a share of `total`, rounded
/// up; at least 1.
std::int64_t interval_steps(double value, std::int64_t total);

/// Optimizer steps of an epoch of `micro_batches` micro-batches a rank: the last, partial group of an epoch
/// steps too, and there is at least one.
std::int64_t steps_per_epoch(std::int64_t micro_batches, std::int64_t accumulation);

/// Optimizer steps of the run: max_steps, or ceil(num_train_epochs x steps per epoch).
std::int64_t total_steps(const Config& config, std::int64_t steps_in_epoch);

/// What is to be said of a resolved configuration where the numbers of ranks and of hosts are known: its
/// notes, with these numbers in place of where they come from.
Strings notes_of(const Resolved& resolved, std::int64_t ranks, std::int64_t hosts);

}  // namespace octet::config
