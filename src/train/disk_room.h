// Room on the disk, looked at before the first step and not at the first save.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "octet/config/config.h"
#include "octet/train/disk.h"

namespace octet::train {

/// Of the file system of a folder; -1: it does not say.
struct DiskState {
  std::int64_t free_bytes = -1;
  std::int64_t free_files = -1;
  std::int64_t block = 4096;  ///< a file takes a multiple of it
  std::uint64_t device = 0;   ///< the same number: the same file system
};
DiskState disk_state(const std::string& folder);
/// The same of a folder that may not be there yet: of what it will be made in.
DiskState disk_state_for(const std::string& folder);

/// Bytes of the files of a folder, those that cannot be looked at not counted.
std::int64_t bytes_of_folder(const std::string& folder);

/// What a run knows of itself when it looks at the disk.
struct DiskFacts {
  RunFiles files;
  std::int64_t first_step = 0;  ///< steps done
  std::int64_t total_steps = 0;
  std::int64_t steps_per_epoch = 1;
  bool measured_saves = false;   ///< the steps between saves follow from what is measured
  std::int64_t checkpoints = 0;  ///< that lie in the output folder and count for save_total_limit
  std::int64_t going_bytes = 0;  ///< of older ones that go when the first new one is there
  std::int64_t block = 4096;     ///< of the disk
};

/// What it will add to what lies on the disk, in bytes that files take there.
struct DiskNeed {
  std::int64_t checkpoint_bytes = 0;  ///< of one
  CheckpointCount checkpoints;
  std::int64_t model_bytes = 0;  ///< of the final model
  std::int64_t going_bytes = 0;
  bool counted = true;  ///< false: how many checkpoints there will be is not known; these are the first two
  /// At the fullest moment.
  std::int64_t all() const { return fullest(checkpoints); }
  /// Below this the run is sure to fail: of two checkpoints (one, where no more come) and the model.
  std::int64_t least() const { return fullest(first()); }
  std::int64_t least_checkpoints() const { return first().most * checkpoint_bytes; }
  CheckpointCount first() const;

 private:
  std::int64_t fullest(const CheckpointCount& count) const;
};
DiskNeed disk_need(const config::Config& config, const DiskFacts& facts);

/// Where a run writes: `folder` is for messages.
struct DiskPlace {
  std::string folder;
  DiskState disk;
};

/// Throws Error (storage) where least() does not fit, or hardly any more files; a warning where all() does
/// not, else empty. `fallback`: save_fallback_dir, which takes checkpoints that the output folder has no room
/// for, where it lies on another file system.
std::string check_disk(const DiskNeed& need, const DiskPlace& output,
                       const std::optional<DiskPlace>& fallback = std::nullopt);

}  // namespace octet::train
