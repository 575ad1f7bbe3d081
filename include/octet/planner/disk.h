// Files that a planned run leaves on disk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "octet/planner/report.h"
#include "octet/planner/target.h"
#include "octet/train/disk.h"
#include "octet/train/fit.h"

namespace octet::planner {

/// Sizes are exact if they follow from the configuration.
struct DiskPlan {
  train::RunFiles files;
  std::int64_t step = 0;  ///< of the checkpoint; 0: unknown, its number is planned with one digit
  std::optional<train::CheckpointCount> checkpoints;  ///< nullopt: depends on the unknown number of steps
  std::int64_t fullest() const {
    const std::int64_t one = files.checkpoint.all();
    return std::max(checkpoints->most * one, checkpoints->at_end * one + files.model());
  }
};

/// Returns the files of a planned run.
DiskPlan plan_disk(const PlanReport& report, const PlanTarget& target);

}  // namespace octet::planner
