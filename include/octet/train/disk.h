// Sizes of the files that a run writes, and the free disk space for them, checked before the first step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/checkpoint/save.h"
#include "octet/config/config.h"
#include "octet/config/keys.h"
#include "octet/model/architecture.h"
#include "octet/weights/tensor_header.h"

namespace octet::train {

/// The facts that determine the sizes of a run's files.
struct RunOutline {
  std::vector<weights::TensorHeader> tensors;  ///< of a checkpoint: Engine::checkpoint_tensors()
  std::string config_yaml;                     ///< stored in a checkpoint
  JsonMember adapters;                         ///< adapter_state(), also stored in a checkpoint; or null
  std::int64_t step = 0;                       ///< of the checkpoint
  int world = 1;
};

/// Sizes of a run's files in bytes. Checkpoints and weights are exact. The other files of the final model
/// (config.json, the tokenizer's files) take at most `model_others`.
struct RunFiles {
  checkpoint::CheckpointSize checkpoint;
  std::int64_t model_weights = 0;
  std::int64_t model_others = 0;
  std::int64_t model() const { return model_weights + model_others; }
};

/// Returns the sizes of a run's files. `architecture`: the model without adapters. A model that is only a
/// shape, not a folder, has no files except its weights.
RunFiles files_of_run(const config::Config& config, const model::Architecture& architecture,
                      const RunOutline& outline);

/// Steps of a run.
struct RunSteps {
  std::int64_t done = 0;
  std::int64_t total = 0;
  std::int64_t of_epoch = 1;
  std::int64_t between_evaluations = 1;  ///< read with save_strategy: best
};
/// Returns the number of checkpoints from now to the end, including the last. With save_strategy: best, the
/// most.
std::int64_t saves_of_run(const config::SaveKeys& config, const RunSteps& steps);

/// Checkpoints of a run on the disk, in addition to the present ones.
struct CheckpointCount {
  std::int64_t most =
      0;  ///< at the fullest moment: a new checkpoint is complete before an old one is removed
  std::int64_t at_end = 0;  ///< when the final model is written
};
/// `saves`: checkpoints to come. `there`: present checkpoints that count for save_total_limit.
CheckpointCount checkpoints_of_run(const config::SaveKeys& config, std::int64_t saves,
                                   std::int64_t there = 0);

// Checks free disk space before the first step, not at the first save.

/// State of a folder's file system; -1: unknown.
struct DiskState {
  std::int64_t free_bytes = -1;
  std::int64_t free_files = -1;
  std::int64_t block = 4096;  ///< file sizes are rounded up to a multiple of it
  std::uint64_t device = 0;   ///< equal numbers mean the same file system
};
DiskState disk_state(const std::string& folder);
/// Like disk_state(), for a folder that may not exist: uses the nearest existing parent.
DiskState disk_state_for(const std::string& folder);

/// Returns the bytes of the files in a folder. Unreadable files are not counted.
std::int64_t bytes_of_folder(const std::string& folder);

/// The facts of a run that determine its disk use.
struct DiskFacts {
  RunFiles files;
  std::int64_t first_step = 0;  ///< steps done
  std::int64_t total_steps = 0;
  std::int64_t steps_per_epoch = 1;
  std::int64_t between_evaluations = 1;  ///< steps; read with save_strategy: best
  bool measured_saves = false;           ///< measurements determine the steps between saves
  std::int64_t checkpoints = 0;          ///< in the output folder, counted for save_total_limit
  std::int64_t going_bytes = 0;          ///< of older checkpoints that are removed after the first new one
  std::int64_t block = 4096;             ///< block size of the disk
};

/// Bytes that a run adds to the disk, in whole blocks.
struct DiskNeed {
  std::int64_t checkpoint_bytes = 0;  ///< of one checkpoint
  CheckpointCount checkpoints;
  std::int64_t model_bytes = 0;  ///< of the final model
  std::int64_t going_bytes = 0;
  bool counted =
      true;  ///< false: the number of checkpoints is unknown, and `checkpoints` is for the first two
  /// Bytes at the fullest moment.
  std::int64_t all() const { return fullest(checkpoints); }
  /// With less space, the run certainly fails: two checkpoints (one, if no more follow) and the model.
  std::int64_t least() const { return fullest(first()); }
  std::int64_t least_checkpoints() const { return first().most * checkpoint_bytes; }
  CheckpointCount first() const;

 private:
  std::int64_t fullest(const CheckpointCount& count) const;
};
DiskNeed disk_need(const config::SaveKeys& config, const DiskFacts& facts);

/// A destination of a run. `folder` is for messages.
struct DiskPlace {
  std::string folder;
  DiskState disk;
};

/// Throws Error (storage) if least() does not fit, or if almost no more files fit. Returns a warning if all()
/// does not fit, else "". `fallback`: save_fallback_dir, for checkpoints that do not fit in the output
/// folder, if it is on another file system.
std::string check_disk(const DiskNeed& need, const DiskPlace& output,
                       const std::optional<DiskPlace>& fallback = std::nullopt);

}  // namespace octet::train
