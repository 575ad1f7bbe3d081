// The output folder before and while a run writes to it.
#pragma once

#include <memory>
#include <string>

#include "octet/checkpoint/folder_lock.h"

namespace octet::train {

/// An output folder that this run has to itself; one rank of a run holds it.
class OutputFolder {
 public:
  /// Makes the folder, takes its lock, tries a write, and removes temporary files that a killed run left.
  /// Throws Error when another run has it (busy), or when it cannot be written. `model` is the folder of the
  /// base model, which may not be the same one: Error (usage).
  OutputFolder(const std::string& path, const std::string& model);
  /// A folder that was made here and holds nothing goes: the run was refused before it wrote anything.
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  /// Throws Error when another run has taken the folder over.
  void require_held() const { lock_->require_held(); }

  /// Puts the checkpoints of an earlier run into `overwritten/`, where nothing looks for any, but a user may;
  /// those in `fallback` (may be empty, or not there) likewise.
  void set_checkpoints_aside(const std::string& fallback = "") const;
  /// Removes them: a checkpoint of this run is there.
  void remove_set_aside(const std::string& fallback = "") const;

 private:
  std::string path_;
  bool made_ = false;
  std::unique_ptr<checkpoint::FolderLock> lock_;
};

/// Throws Error where checkpoints that output_dir does not take could not be written there either: the day
/// that they are is too late to learn it. A folder that was not there is not there afterwards.
void require_fallback(const std::string& folder);

/// True for the names under which this program writes files before they get their own: "config.json.tmp-123".
bool is_left_behind(const std::string& name);

}  // namespace octet::train
