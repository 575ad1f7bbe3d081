// The results of a plan: memory, time, notes on them, and the disk that its run needs.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/plan/memory.h"
#include "octet/plan/time.h"
#include "octet/planner/planner.h"
#include "octet/planner/stages.h"
#include "octet/store/step_messages.h"
#include "octet/train/disk.h"
#include "octet/train/fit.h"
#include "octet/train/ladder.h"

namespace octet::planner {

// Notes, warnings and errors that the planned run would report before its first step.

struct PlanNotes {
  config::Strings notes;         ///< notes of the configuration, as in a run
  config::Strings doubts;        ///< warnings about unusual settings
  config::Strings cannot_run;    ///< errors that would end the run, like unsupported features
  ExitCode code = ExitCode::ok;  ///< exit code of the first error
};

/// `kind` is the planned device. If `configured` is false there is no configuration, only the shape of a
/// model; then no warnings about keys are given. Data sets are not read. Weights and tokenizers may be
/// missing on the planning machine.
PlanNotes plan_notes(const config::Resolved& resolved, bool configured, const std::string& model,
                     const model::Architecture& architecture, DeviceKind kind);

/// Another configuration that fits if the planned run does not: its keys, and its fastest sizes.
struct Alternative {
  std::string keys;
  plan::Choice choice;
  std::size_t bytes = 0;  ///< of device memory
};

/// All figures of `trainer plan`.
struct PlanReport {
  config::Config config;  ///< with the storage of states that the run would choose
  std::string model;
  config::Batch batch;
  plan::Choice choice;
  plan::Memory memory;
  std::size_t staging = 0, nccl = 0, libraries = 0;
  plan::Work work;
  plan::Time time;
  /// Bytes that rank 0 sends per step, by zero_stage.
  std::array<store::StepMessages, 4> messages{};
  int ranks_of_host = 1;
  bool on_gpus_of_one_host = false;
  int stage = 0;
  std::int64_t group = 0;  ///< ranks of a sharding group; 0: all
  /// The largest micro-batch for each level of recompute. A level is omitted if a cheaper level allows the
  /// same micro-batch or a larger one.
  std::vector<plan::Choice> fitting;
  std::vector<train::Rung> ladder;        ///< if the run does not fit
  std::vector<Alternative> alternatives;  ///< if the run does not fit
  std::string fp8;                        ///< note, if FP8 does not pay off
  std::vector<StageRow> stages;           ///< for the planned micro-batch; empty for one rank
  std::vector<LevelRow> levels;           ///< for the planned stage and micro-batch
  std::optional<std::int64_t> steps;      ///< of the whole run, if known
  PlanNotes notes;
  std::size_t total() const { return memory.bytes + staging + nccl + libraries; }
  /// Returns the seconds of a step's messages over a link, one for each zero_stage. A link inside a host
  /// carries the messages within the host. A link between hosts carries the rest, for all ranks of the host.
  std::array<double, 4> seconds_over(const plan::Link& link) const;
  /// Returns the part of seconds_over() that computation cannot hide. See plan::exposed_seconds for the
  /// assumptions.
  std::array<double, 4> exposed_over(const plan::Link& link) const;
  /// Returns the seconds of a rank's messages per step over NVLink, if all GPUs are in one host. Returns 0
  /// otherwise, because the network decides.
  double message_seconds() const;
  /// Lower bound of a step: messages overlap fully with computation.
  double floor_seconds() const { return std::max(time.seconds, message_seconds()); }
  std::int64_t tokens_per_step() const { return batch.global * config.cutoff_len; }
  /// Returns a lower bound of the cost of one step on all ranks at gpu_hour_price.
  double cost_per_step() const;
};

/// A configuration to plan, and the model that it trains.
struct PlanWish {
  config::Resolved resolved;
  bool configured = false;  ///< false: there is no configuration, only the shape of a model
  std::string model;        ///< for model::find_shape()
  double tokens = 0;        ///< of the whole run; 0: not given
};

/// Plans a run. The data is unknown, so every sample is taken as cutoff_len long. The number of steps follows
/// from max_steps or from `tokens`. Throws Error (usage) if both are set, and for an invalid configuration.
PlanReport plan_run(PlanWish wish, const PlanTarget& target);

// Files that a planned run leaves on disk.

/// Sizes are exact if they follow from the configuration.
struct DiskPlan {
  train::RunFiles files;
  std::int64_t step = 0;  ///< step in the name of the checkpoint; 0: unknown, planned as one digit
  std::optional<train::CheckpointCount> checkpoints;  ///< nullopt: depends on the unknown number of steps
  /// Returns the largest number of bytes that the run has on disk at any time.
  std::int64_t fullest() const {
    const std::int64_t one = files.checkpoint.all();
    return std::max(checkpoints->most * one, checkpoints->at_end * one + files.model());
  }
};

/// Returns the files of a planned run.
DiskPlan plan_disk(const PlanReport& report, const PlanTarget& target);

}  // namespace octet::planner
