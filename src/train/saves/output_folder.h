// The output folder, before and during a run.
#pragma once

#include <memory>
#include <string>

#include "octet/files/folder_lock.h"

namespace octet::train {

/// An output folder that is locked for this run. One rank of a run holds it.
class OutputFolder {
 public:
  /// Creates and locks the folder, tests a write, and removes temporary files of killed runs. Throws Error if
  /// another run has the lock (busy), or if the folder is not writable. Throws Error (usage) if `model`, the
  /// folder of the base model, is the same folder.
  OutputFolder(const std::string& path, const std::string& model);
  /// Removes the folder if it was created here and is empty, because the run was refused before its first
  /// write.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Throws Error if another run has taken over the folder.
  void require_held() const { lock_->require_held(); }

  /// Moves checkpoints of an earlier run into `overwritten/`, which no start searches, so a user can restore
  /// them. Likewise in `fallback`, which may be empty or missing.
  void set_checkpoints_aside(const std::string& fallback = "") const;
  /// Removes the moved checkpoints after the first checkpoint of this run.
  void remove_set_aside(const std::string& fallback = "") const;

 private:
  std::string path_;
  bool made_ = false;
  std::unique_ptr<files::FolderLock> lock_;
};

/// Throws Error if `folder`, which takes checkpoints when output_dir fails, is not writable. The start
/// detects this, before any save fails. A folder that did not exist is removed again.
void require_fallback(const std::string& folder);

/// Whether `name` is a temporary name of a file that this program was writing: "config.json.tmp-123".
bool is_left_behind(const std::string& name);

}  // namespace octet::train
