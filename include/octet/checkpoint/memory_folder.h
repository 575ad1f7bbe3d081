// Where a host keeps checkpoints in memory, whose they are, and when they go.
#pragma once

#include <cstdint>
#include <string>

namespace octet::checkpoint {

/// The folder of a run on this host: in /dev/shm, or in what OCTETRUN_MEMORY_FOLDER names. `run`: the run's
/// name, other than any other run's: that of its job (which words of the command line stand for), a hyphen
/// and more.
std::string memory_folder(const std::string& run);

/// Says that a run lives, as long as an object does, whatever ends the process. Several may.
class MemoryHold {
 public:
  /// Makes the folder, for this user alone, where it is not there. Throws Error where it cannot be made or
  /// belongs to somebody else.
  explicit MemoryHold(const std::string& folder);
  ~MemoryHold();
  MemoryHold(const MemoryHold&) = delete;
  MemoryHold& operator=(const MemoryHold&) = delete;
  /// The folder was in use at this moment.
  void touch() const;

 private:
  int lock_ = -1;
};

/// Removes a folder and what lies in it, whoever holds it.
void remove_memory(const std::string& folder);
/// Removes the folders of earlier runs of the same job that nobody holds: no two of a job live at once.
void remove_earlier_memory(const std::string& folder);
/// Removes this user's folders of runs that are gone: nobody holds them, nobody keeps them, and they were
/// not in use for as long as a keeper waits.
void remove_stale_memory();

/// Starts a process of its own that waits for the run to end and then removes its folder: when nobody has
/// held it for 15 minutes (OCTETRUN_MEMORY_KEEP names other seconds), in which a supervisor that was killed
/// may be started again. It belongs to no session and no job, and ends at once where the folder has one
/// already. `program`: this one's path.
void start_memory_keeper(const std::string& program, const std::string& folder);
/// What that process does; returns its exit code.
int keep_memory(const std::string& folder);

/// What a host has for checkpoints in memory.
struct MemoryRoom {
  std::int64_t file_system = 0;  ///< free bytes of the folder's file system, those of the folder included
  std::int64_t memory = 0;       ///< of the machine, or its control group, likewise
};
MemoryRoom memory_room(const std::string& folder);
/// Throws Error (usage) with these figures where `need` bytes do not fit. `ranks`, `copies`: of the host, for
/// the message.
void require_memory_room(std::int64_t need, const MemoryRoom& room, const std::string& folder,
                         const std::string& host);

}  // namespace octet::checkpoint
