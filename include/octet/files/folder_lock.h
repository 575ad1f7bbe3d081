// Locks that allow one run per output folder, and one command per file. A second writer would mix its data
// with that of the first.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace octet::files {

/// The object that a FolderLock locks.
enum class Held : std::uint8_t {
  folder,  ///< an output folder, by `<path>/octet.lock`
  file     ///< a file or folder that a command writes, by `<path>.octet.lock` next to it
};

/// How a FolderLock determines whether an owner is alive. Tests use shorter times, or disable the kernel
/// lock.
struct FolderLockOptions {
  Held held = Held::folder;
  bool kernel = true;           ///< use flock(2); false: as on a file system without it
  double beat_seconds = 2;      ///< between two heartbeats of the owner
  double patience_seconds = 8;  ///< after this time without a heartbeat, an owner elsewhere counts as dead
};

/// Holds a folder or a file for the lifetime of the object. One process of a run holds it. The lock file (see
/// Held) names its owner (host, process, start of the process) and changes every `beat_seconds`.
///
/// On one kernel, flock(2) decides: the kernel releases the lock when a process ends for any reason. Some
/// file systems do not support flock, or do not apply it across hosts. So the owner in the file is checked
/// too. A process of this machine is checked by its number and start time. Any other process is checked by
/// its heartbeats, for which the constructor waits up to `patience_seconds`.
class FolderLock {
 public:
  /// Throws Error (ExitCode::busy) naming a live owner. Throws Error (storage, failure) if the lock file
  /// cannot be written. The folder of the lock file must exist.
  explicit FolderLock(const std::string& path, const FolderLockOptions& options = {});
  /// Removes the lock file, unless another run has taken it over.
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Throws Error (ExitCode::busy) if another run has taken over the lock. This is possible only if the
  /// kernel holds no lock, and this process was stopped for longer than the patience of the other run.
  void require_held() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

/// Locks the file or folder `path` (Held::file), so that no other command writes it. Creates the parent
/// folder of `path` if needed. Throws Error (busy) that names the process of another command that holds the
/// lock.
std::unique_ptr<const FolderLock> lock_output(const std::string& path);

/// Removes the lock files of this process. Async-signal-safe: it only unlinks, so a signal handler that ends
/// the process may call it.
void remove_held_lock_files() noexcept;

}  // namespace octet::files
