// One run per output folder, and one command per file: a second one would mix its rows with the first one's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace octet::checkpoint {

/// What a FolderLock holds.
enum class Held : std::uint8_t {
  folder,  ///< an output folder, by `<path>/octet.lock`
  file     ///< a file or a folder that a command writes, by `<path>.octet.lock` beside it
};

/// How a FolderLock finds out whether an owner lives. Tests make it faster, or do without the kernel.
struct FolderLockOptions {
  Held held = Held::folder;
  bool kernel = true;           ///< ask for flock(2); false: as on a file system that has none
  double beat_seconds = 2;      ///< between two signs of life of the owner
  double patience_seconds = 8;  ///< without one an owner elsewhere counts as gone
};

/// Holds a folder or a file for its lifetime; one process of a run does. The lock file (see Held) names its
/// owner (host, process, start of the process) and changes every `beat_seconds`.
///
/// On one kernel flock(2) decides: what a process held is free the moment it is gone, however it went. File
/// systems that have no such lock, and those of several hosts on which it does not reach the others, are why
/// the owner is looked at too: a process of this machine by its number and start, any other by its signs of
/// life, for which the constructor waits `patience_seconds`.
class FolderLock {
 public:
  /// Throws Error (ExitCode::busy) that names the owner while one lives, and Error (storage, failure) where
  /// the lock file cannot be written. The folder that holds the lock file exists.
  explicit FolderLock(const std::string& path, const FolderLockOptions& options = {});
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

/// Removes the lock files of this process. For a handler of signals that ends the process: it only unlinks.
void remove_held_lock_files() noexcept;

}  // namespace octet::checkpoint
