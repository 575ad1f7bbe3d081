// Room on the disk, looked at before the first step and not at the first save.
#pragma once

#include <cstdint>
#include <string>

#include "octet/config/config.h"

namespace octet::train {

/// What a run knows of itself when it looks at the disk.
struct DiskFacts {
  std::int64_t parameters = 0;
  std::int64_t first_step = 0;  ///< steps done
  std::int64_t total_steps = 0;
  std::int64_t steps_per_epoch = 1;
  std::int64_t checkpoints = 0;  ///< in the output folder already
};

/// What it will add to what lies on the disk.
struct DiskNeed {
  std::int64_t checkpoint_bytes = 0;  ///< of one: parameters and two moments as they are stored
  std::int64_t checkpoints = 0;       ///< more of them than now, at the fullest moment
  std::int64_t model_bytes = 0;       ///< of the final model
  std::int64_t all() const { return checkpoints * checkpoint_bytes + model_bytes; }
  /// Below this the run is sure to fail early: two checkpoints (one, where no more come) and the model.
  std::int64_t least() const { return (checkpoints < 2 ? checkpoints : 2) * checkpoint_bytes + model_bytes; }
};
DiskNeed disk_need(const config::Config& config, const DiskFacts& facts);

/// Of the file system of a folder; -1: it does not say.
struct DiskState {
  std::int64_t free_bytes = -1;
  std::int64_t free_files = -1;
};
DiskState disk_state(const std::string& folder);

/// Throws Error (storage) where least() does not fit, or hardly any more files; a warning where all() does
/// not, else empty. `folder` is for the message.
std::string check_disk(const DiskNeed& need, const DiskState& disk, const std::string& folder);

}  // namespace octet::train
