#pragma once

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/plan/advice.h"
#include "octet/plan/memory.h"
#include "octet/plan/time.h"
#include "octet/store/messages.h"
#include "octet/train/ladder.h"

namespace octet::cli {

/// What a plan is for.
struct PlanTarget {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;
  std::size_t memory = 0;  ///< of the device; of a rank's share of the node's memory on CPUs
  comm::Place place;
};

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
  std::size_t total() const { return memory.bytes + staging + nccl + libraries; }
  /// Seconds that a link takes for it: one inside a host for all that stays there, one between hosts for the
  /// rest, which it carries for all ranks of the host.
  std::array<double, 4> seconds_over(const plan::Link& link) const;
  /// Seconds for which a rank's messages are under way in a step. Among GPUs of one host, over NVLink; else
  /// their network decides, and it is 0.
  double message_seconds() const;
  /// Messages travel beside what is computed, at best.
  double floor_seconds() const { return std::max(time.seconds, message_seconds()); }
};

/// Plans a run of the model that the configuration describes. Without its data the worst is taken: every
/// sample is cutoff_len long.
PlanReport make_plan(const config::Config& config, const std::string& model, const PlanTarget& target);

}  // namespace octet::cli
