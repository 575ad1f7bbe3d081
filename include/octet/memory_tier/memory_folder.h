// Folders of checkpoints in host memory: location, ownership and removal.
#pragma once

#include <cstdint>
#include <string>

namespace octet::memory_tier {

/// Returns the folder of a run on this host: in /dev/shm, or in the folder that OCTETRUN_MEMORY_FOLDER names.
/// `run` is the unique name of the run: the name of its job (derived from the command line), a hyphen and a
/// suffix.
std::string memory_folder(const std::string& run);

/// Marks a run as live while the object exists; the mark ends with the process. Several holds may exist.
class MemoryHold {
 public:
  /// Creates the folder if it is missing, accessible to this user only. Throws Error if this fails or the
  /// folder belongs to another user.
  explicit MemoryHold(const std::string& folder);
  ~MemoryHold();
  MemoryHold(const MemoryHold&) = delete;
  MemoryHold& operator=(const MemoryHold&) = delete;
  /// Records that the folder is in use now.
  void touch() const;

 private:
  int lock_ = -1;
};

/// Removes a folder and its contents, even if it is held.
void remove_memory(const std::string& folder);
/// Removes the folders of earlier runs of the same job that are not held. Two runs of a job never live at
/// once.
void remove_earlier_memory(const std::string& folder);
/// Removes this user's folders of ended runs: they are not held, have no keeper process, and were unused for
/// longer than a keeper waits.
void remove_stale_memory();

/// Starts a process that waits for the run to end and then removes its folder. It removes the folder after it
/// was not held for 15 minutes (or OCTETRUN_MEMORY_KEEP seconds), during which a killed supervisor may be
/// restarted. The process has its own session, outside the job. It exits at once if the folder already has a
/// keeper. `program`: path of this program.
void start_memory_keeper(const std::string& program, const std::string& folder);
/// Runs the keeper process; returns its exit code.
int keep_memory(const std::string& folder);

/// Memory of a host for checkpoints.
struct MemoryRoom {
  std::int64_t file_system = 0;  ///< free bytes of the folder's file system, plus the bytes of the folder
  std::int64_t memory = 0;  ///< free bytes of the machine or its control group, plus the bytes of the folder
};
MemoryRoom memory_room(const std::string& folder);
/// Throws Error (usage) with these figures if `need` bytes do not fit. `host` is for the message.
void require_memory_room(std::int64_t need, const MemoryRoom& room, const std::string& folder,
                         const std::string& host);

}  // namespace octet::memory_tier
