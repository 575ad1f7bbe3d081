// One configuration on one device, as `trainer plan` looks at it.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/train/fit.h"
#include "octet/train/ladder.h"
#include "plan_target.h"

namespace octet::cli {

/// What NCCL takes: inside a host it carries (gathers and reductions, each on a communicator of its own) and
/// sums only where it is asked to, between hosts it carries where it can.
std::size_t nccl_bytes(const config::Config& config, const PlanTarget& target);

class Planner {
 public:
  Planner(const config::Config& config, const model::Architecture& architecture, const PlanTarget& target)
      : config_(config), architecture_(architecture), target_(target) {}

  std::size_t outside() const { return outside_of(target_.place); }
  /// What is taken beside the engine's memory where the ranks are others.
  std::size_t outside_of(const comm::Place& place) const;
  std::size_t limit() const { return target_.memory - std::min(target_.memory, outside()); }

  config::Batch batch(std::int64_t micro) const;
  runtime::InstanceOptions build(const plan::Choice& choice) const;
  plan::Memory memory(const plan::Choice& choice) const;
  std::array<store::StepMessages, 4> messages(const plan::Choice& choice) const;
  /// Of a step with what is held so; evaluations may have more tokens.
  plan::Work work(const plan::Choice& choice, const plan::Memory& memory) const;

  /// What the run itself would take.
  plan::Choice choice() const;
  /// What to change where a rank has so many bytes: for all that it takes, or for what is reserved alone.
  std::vector<train::Rung> ladder(std::size_t limit, bool whole) const;
  /// Whether what the run itself would take fits.
  bool fits() const;
  /// The largest micro-batch at each level.
  std::vector<plan::Choice> fitting() const;
  /// The fastest of all that fit, or nothing.
  std::optional<plan::Choice> best() const;
  /// Levels that the device has, whatever the configuration asks for.
  std::vector<plan::Level> all_levels() const;

 private:
  train::Candidates candidates_of(std::vector<std::int64_t> micros, std::vector<plan::Level> levels) const;

  const config::Config& config_;
  const model::Architecture& architecture_;
  const PlanTarget& target_;
};

}  // namespace octet::cli
