// The checkpoints of an output folder: listing, the newest valid one, verification of written ones, and
// rotation.
#pragma once

#include <cstdint>
#include <future>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "octet/comm/channel.h"

namespace octet::checkpoint {

/// Returns the folder name of a step, for example "checkpoint-120".
std::string folder_name(std::int64_t step);

/// Returns steps and paths of all folders `checkpoint-<step>`, oldest first, valid or not. Empty if
/// `output_dir` does not exist.
std::vector<std::pair<std::int64_t, std::string>> list_checkpoints(const std::string& output_dir);

struct FindOptions {
  bool verify_data = true;  ///< hash every byte (shared among the ranks), instead of manifest and layout only
  std::int64_t before_step = std::numeric_limits<std::int64_t>::max();  ///< consider only earlier steps
};

struct Found {
  std::string path;  ///< path of the newest valid checkpoint; empty if there is none
  /// Newer invalid checkpoints, each with the message of its Error.
  std::vector<std::pair<std::string, std::string>> rejected;
};

/// Finds the newest valid checkpoint. Collective; all ranks get the result for rank 0's list. Invalid
/// checkpoints are skipped with a warning. Rank 0 removes temporary folders of killed runs. The caller must
/// therefore hold `output_dir` (FolderLock), so that no live run is saving to it.
Found find_latest(comm::Channel& channel, const std::string& output_dir, const FindOptions& options = {});

/// Returns the checkpoint for a path from a user: `path` itself, or the newest checkpoint with a valid
/// manifest if `path` is an output folder. Throws Error if there is none. Not collective, removes nothing.
std::string resolve_checkpoint(const std::string& path);

/// Whether `path` is a checkpoint, by its files or its name. A checkpoint with missing files counts; opening
/// it reports them.
bool is_checkpoint(const std::string& path);

/// Returns the newest valid checkpoint in the output folder of a run. Returns `path` itself if it is a
/// checkpoint or contains none.
std::string checkpoint_of_run(const std::string& path);

/// Throws Error (ExitCode::no_valid_checkpoint) if `path` is named checkpoint-<another step>. Other names are
/// accepted.
void require_own_name(const std::string& path, std::int64_t step);

/// Removes temporary folders of killed runs from an output folder. The caller must hold the folder
/// (FolderLock). Called by one rank.
void remove_stale(const std::string& output_dir);

/// Removes old checkpoints. Called by one rank. Keeps the newest `keep_last` valid checkpoints (0 keeps all)
/// and the folder `keep_best` (a path or a plain name; may be empty). Folders without a valid manifest are
/// neither counted nor removed. With `counting`, only checkpoints of these steps count; others are removed if
/// they are old enough. A folder is renamed before its removal, so that a kill leaves no partial checkpoint.
void rotate(const std::string& output_dir, std::int64_t keep_last, const std::string& keep_best = "",
            const std::set<std::int64_t>* counting = nullptr);

// Recognises the checkpoint folders of this program.

/// Returns whether a folder contains a file of this program's checkpoints. Other folders belong to the user
/// or another trainer, and are neither moved nor removed.
bool is_own_checkpoint(const std::string& path);

// Verification of written checkpoints by reading them back from the disk, and removal of old ones.

/// Reads every byte of a checkpoint from the device and compares hashes. Bypasses the page cache if the file
/// system supports O_DIRECT; otherwise cached pages are dropped first. Throws Error (ExitCode::storage)
/// naming the place of the first wrong byte.
void read_back(const std::string& path);

/// The checkpoints that a run has saved to one folder. A checkpoint counts after it has been read back. Old
/// ones are removed only if enough newer ones count. One thread must call the functions.
class Keeper {
 public:
  /// Keeps the newest `keep_last` checkpoints that count (0: all).
  Keeper(std::string folder, std::int64_t keep_last);
  /// Waits for a pending read.
  ~Keeper() = default;
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// Counts the checkpoint of `step`, which the run verified when it resumed from it.
  void trust(std::int64_t step);
  /// Keeps the checkpoint of `step` regardless of its age. Replaces the step of an earlier call.
  void keep(std::int64_t step) { best_ = step; }
  /// Starts a thread that reads back the newly saved checkpoint of `step`.
  void saved(std::int64_t step);
  /// Returns whether that read is complete. settle() takes its result.
  bool is_read() const;
  /// Waits for the read, and removes old checkpoints. Returns an error message, or "" if the checkpoint is
  /// intact or nothing was being read. A damaged checkpoint is kept until enough newer ones count.
  std::string settle();

 private:
  std::string folder_;
  std::int64_t keep_last_;
  std::set<std::int64_t> counts_;  ///< steps of the checkpoints that count
  std::int64_t step_ = -1;         ///< the step that is being read
  std::int64_t best_ = -1;         ///< the step to keep; -1: none
  std::future<std::string> reading_;
};

}  // namespace octet::checkpoint
