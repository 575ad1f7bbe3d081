// One run to an output folder: a second one would mix its logs with the first one's and remove its saves.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace octet::checkpoint {

/// How a FolderLock finds out whether an owner lives. Tests make it faster, or do without the kernel.
struct FolderLockOptions {
  bool kernel = true;           ///< ask for flock(2); false: as on a file system that has none
  double beat_seconds = 2;      ///< between two signs of life of the owner
  double patience_seconds = 8;  ///< without one an owner elsewhere counts as gone
};

/// Holds `<folder>/octet.lock` for its lifetime; one process of a run does. The file names its owner (host,
/// process, start of the process) and changes every `beat_seconds`.
///
/// On one kernel flock(2) decides: what a process held is free the moment it is gone, however it went. File
/// systems that have no such lock, and those of several hosts on which it does not reach the others, are why
/// the owner is looked at too: a process of this machine by its number and start, any other by its signs of
/// life, for which the constructor waits `patience_seconds`.
class FolderLock {
 public:
  /// Throws Error (ExitCode::busy) that names the owner while one lives, and Error (storage, failure) where
  /// the file cannot be written. The folder exists.
  explicit FolderLock(const std::string& folder, const FolderLockOptions& options = {});
  /// Removes the file.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Throws Error (ExitCode::busy) when another run has taken the folder over: possible only where the kernel
  /// holds no lock and this process was stopped for longer than another one's patience.
  void require_held() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet::checkpoint
