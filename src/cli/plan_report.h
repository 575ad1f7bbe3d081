#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/plan/advice.h"
#include "octet/plan/memory.h"
#include "octet/plan/time.h"
#include "octet/store/messages.h"
#include "octet/train/ladder.h"
#include "plan_notes.h"
#include "plan_stages.h"
#include "plan_target.h"

namespace octet::cli {

/// Other storage with which a run fits that does not: keys of the configuration, and the fastest sizes.
struct Alternative {
  std::string keys;
  plan::Choice choice;
  std::size_t bytes = 0;  ///< of the device's memory
};

/// Everything that `trainer plan` finds out.
struct PlanReport {
  config::Config config;  ///< with the storage of states that the run would take
  std::string model;
  config::Batch batch;
  plan::Choice choice;
  plan::Memory memory;
  std::size_t staging = 0, nccl = 0, libraries = 0;
  plan::Work work;
  plan::Time time;
  /// What rank 0 sends in a step, by zero_stage.
  std::array<store::StepMessages, 4> messages{};
  int ranks_of_host = 1;
  bool on_gpus_of_one_host = false;
  int stage = 0;
  /// The largest micro-batch at each level, of levels that take a larger one than those before.
  std::vector<plan::Choice> fitting;
  std::vector<train::Rung> ladder;        ///< where the run does not fit
  std::vector<Alternative> alternatives;  ///< where the run does not fit
  std::string fp8;                        ///< where FP8 does not pay
  std::vector<StageRow> stages;           ///< with the planned micro-batch; empty for one rank
  std::vector<LevelRow> levels;           ///< of the planned stage and micro-batch
  std::optional<std::int64_t> steps;      ///< of the whole run, where they are known
  PlanNotes notes;
  std::size_t total() const { return memory.bytes + staging + nccl + libraries; }
  /// Seconds that a link takes for it: one inside a host for all that stays there, one between hosts for the
  /// rest, which it carries for all ranks of the host.
  std::array<double, 4> seconds_over(const plan::Link& link) const;
  /// Of these, what the step's computation cannot hide (plan::exposed_seconds says with which assumptions).
  std::array<double, 4> exposed_over(const plan::Link& link) const;
  /// Seconds for which a rank's messages are under way in a step. Among GPUs of one host, over NVLink; else
  /// their network decides, and it is 0.
  double message_seconds() const;
  /// Messages travel beside what is computed, at best.
  double floor_seconds() const { return std::max(time.seconds, message_seconds()); }
  std::int64_t tokens_per_step() const { return batch.global * config.cutoff_len; }
  /// Of one step on all ranks at gpu_hour_price, at least.
  double cost_per_step() const;
};

/// Steps of a run, where the configuration or that many tokens to train on (0: not given) say it. Throws
/// Error (usage) where both do.
std::optional<std::int64_t> steps_of_run(const config::Config& config, double tokens,
                                         std::int64_t tokens_per_step);

/// Plans a run of the model that the configuration describes; its notes and steps are left out. Without its
/// data the worst is taken: every sample is cutoff_len long.
PlanReport make_plan(const config::Config& config, const std::string& model, const PlanTarget& target);

}  // namespace octet::cli
