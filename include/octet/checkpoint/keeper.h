// Verification of written checkpoints by reading them back from the disk, and removal of old ones.
#pragma once

#include <cstdint>
#include <future>
#include <set>
#include <string>

namespace octet::checkpoint {

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
