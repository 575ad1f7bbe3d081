// Chooses zero_stage and the level of recomputation for `trainer plan`, with reasons.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "octet/plan/time.h"
#include "octet/planner/planner.h"
#include "octet/store/step_messages.h"

namespace octet::planner {

/// A level for the planned stage and micro-batch.
struct LevelRow {
  plan::Level level;
  std::size_t bytes = 0;  ///< of a rank, in all
  double seconds = 0;     ///< lower bound of a step; 0 on a CPU, which has no time model
};

/// A stage for the planned micro-batch and the planned storage of states.
struct StageRow {
  int stage = 0;
  plan::Level level;      ///< the fastest that fits; if none fits, the level with the fewest bytes
  std::size_t bytes = 0;  ///< of a rank, in all
  bool fits = false;
  double seconds = 0;     ///< lower bound of the computation of a step; 0 on a CPU
  double exposed = 0;     ///< exposed messages of a step over assumed_links()
  std::int64_t sent = 0;  ///< bytes that a rank sends per step
  double step() const { return seconds + exposed; }
};

/// Returns the bytes that a rank sends over a kind of link.
plan::Sending sending_over(const store::StepMessages& messages, const plan::Link& link);

/// Returns the links that are assumed for comparing stages: NVLink inside a host, 400 Gbit/s per host between
/// hosts.
std::vector<const plan::Link*> assumed_links(const PlanTarget& target);

/// Returns all levels, the fastest first.
std::vector<LevelRow> compare_levels(const Planner& planner, const PlanTarget& target, std::int64_t micro);
/// Returns stages 0 to 3; empty for one rank, which has no other rank to shard with. `messages` are indexed
/// by stage.
std::vector<StageRow> compare_stages(const config::Config& config, const model::Architecture& architecture,
                                     const PlanTarget& target, const plan::Choice& choice,
                                     const std::array<store::StepMessages, 4>& messages);

/// Returns the lowest stage that fits and is at most 2 % slower than the fastest one. On CPUs the sent bytes
/// are compared instead. Returns nullopt if none fits.
std::optional<int> chosen_stage(const std::vector<StageRow>& stages, DeviceKind kind);
/// Explain the choices as sentences without a full stop: "zero_stage 1 with recompute=none, …". "" for one
/// rank.
std::string why_stage(const std::vector<StageRow>& stages, const PlanTarget& target);
std::string why_level(const std::vector<LevelRow>& levels, const plan::Level& planned,
                      const PlanTarget& target);

}  // namespace octet::planner
