// Which zero_stage and which level of recomputation `trainer plan` would choose, and why.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "octet/plan/exposed.h"
#include "octet/store/messages.h"
#include "planner.h"

namespace octet::cli {

/// A level at the planned stage and micro-batch.
struct LevelRow {
  plan::Level level;
  std::size_t bytes = 0;  ///< of a rank, in all
  double seconds = 0;     ///< of a step, at least; 0 on a CPU, of which there is no model of time
};

/// A stage with the micro-batch that is planned and states stored as planned.
struct StageRow {
  int stage = 0;
  plan::Level level;      ///< the fastest that fits; where none does, the one that holds least
  std::size_t bytes = 0;  ///< of a rank, in all
  bool fits = false;
  double seconds = 0;     ///< of a step's computation, at least; 0 on a CPU
  double exposed = 0;     ///< of a step's messages, over assumed_links()
  std::int64_t sent = 0;  ///< bytes of a rank in a step
  double step() const { return seconds + exposed; }
};

/// What a rank sends over a kind of link.
plan::Sending sending_over(const store::StepMessages& messages, const plan::Link& link);

/// Over which links messages are taken to travel where stages are compared: NVLink inside a host, 400 Gbit/s
/// per host between hosts.
std::vector<const plan::Link*> assumed_links(const PlanTarget& target);

/// All levels, from the one that computes least again.
std::vector<LevelRow> compare_levels(const Planner& planner, const PlanTarget& target, std::int64_t micro);
/// Stages 0 to 3; empty for one rank, which has nobody to share with. `messages` are those of the stages.
std::vector<StageRow> compare_stages(const config::Config& config, const model::Architecture& architecture,
                                     const PlanTarget& target, const plan::Choice& choice,
                                     const std::array<store::StepMessages, 4>& messages);

/// The lowest stage that fits and whose step is at most 2 % longer than the shortest one; on CPUs the bytes
/// that are sent decide. Nothing where none fits.
std::optional<int> chosen_stage(const std::vector<StageRow>& stages, DeviceKind kind);
/// As sentences without a full stop: "zero_stage 1 with recompute=none, …"; "" for one rank.
std::string why_stage(const std::vector<StageRow>& stages, const PlanTarget& target);
std::string why_level(const std::vector<LevelRow>& levels, const plan::Level& planned,
                      const PlanTarget& target);

}  // namespace octet::cli
