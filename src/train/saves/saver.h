// Saves the checkpoints of a run, between two steps or concurrently with them. Handles full and failing
// disks, and disks that return other bytes than were written.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "octet/base/error.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/channel.h"
#include "octet/runtime/watchdog.h"

namespace octet::train {

struct SaverOptions {
  std::string folder;
  std::string fallback;           ///< tried if `folder` fails; empty: none
  std::int64_t keep_last = 0;     ///< in each of the two folders; 0: all
  std::int64_t most_failed = 10;  ///< failed saves in a row after which the run ends
  std::int64_t retry_steps = 1;   ///< steps from a failed save to the next attempt
  bool reads_back = true;
  double most_seconds =
      3e7;  ///< limit for writing or reading back concurrently with steps; then the process ends
};

/// Returns the subfolder of `save_fallback_dir` for the run with this output folder.
std::string fallback_folder(const std::string& save_fallback_dir, const std::string& output_dir);

/// A save that runs concurrently with steps; the part of one rank.
struct SaveBeside {
  checkpoint::CheckpointContents contents;  ///< slices in memory that does not change until end() returns
  std::function<void()> wait;               ///< blocks until that memory is filled; called on another thread
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();  ///< start of the copy
  std::int64_t best = -1;  ///< the step of the checkpoint to keep if this save succeeds; -1: none
};

/// Result of a concurrent save, equal on all ranks.
struct Ended {
  std::int64_t step = 0;
  std::string path;  ///< of the checkpoint, after it was read back; empty: the save failed
};

/// Saves, and reads back. All functions are collective, and results are equal on all ranks.
class Saver {
 public:
  /// `channel`: only for this class, which may use it on its thread. `trusted`: a checkpoint that was already
  /// verified at the start of the run, or empty.
  Saver(comm::Channel& channel, SaverOptions options, const std::string& trusted);
  /// Waits for a save in flight.
  ~Saver() = default;

  /// Keeps the checkpoint of that step in either folder. The checkpoint that was kept before may be removed.
  void keep(std::int64_t step) { keeper_.keep(step), fallback_keeper_.keep(step); }
  /// Saves to the folder, or to the fallback if that fails. Returns the checkpoint's path, or "" if both
  /// failed. A failure is counted, and rank 0 logs the reason.
  std::string save(const checkpoint::CheckpointContents& contents);
  /// Waits until the last checkpoint of save() was read back. Returns false if it is damaged, which counts as
  /// a failed save.
  bool holds();

  /// Starts a save, including reading back, on a separate thread. Logs "taken" when the copy is complete. No
  /// other save may be in flight.
  void begin(SaveBeside save);
  bool in_flight() const { return beside_.valid(); }
  /// Waits for the save in flight, counts it, and logs failures. Returns nullopt if none is in flight.
  /// `step`: steps done so far. Rethrows an exception that ended the thread on this rank only.
  std::optional<Ended> end(std::int64_t step);
  /// Local: whether holds() or end() has a result on this rank and would not block.
  bool asks_to_settle() const;

  /// Whether to retry a failed save after this step.
  bool retries_at(std::int64_t step) const {
    return failed_in_a_row_ > 0 && !in_flight() && step >= retry_step_;
  }
  /// Whether so many saves failed that the run must end.
  bool gives_up() const { return failed_in_a_row_ >= options_.most_failed; }
  std::int64_t failed_in_a_row() const { return failed_in_a_row_; }

 private:
  /// Result of a write. Paths and reasons are equal on all ranks.
  struct Written {
    std::int64_t step = 0;
    std::string path, why;                 ///< path "": both folders failed
    checkpoint::Keeper* keeper = nullptr;  ///< of the folder with the checkpoint
    std::string wrong;                     ///< rank 0: the result of reading back on the thread
  };
  std::string attempt(const std::string& folder, const checkpoint::CheckpointContents& contents,
                      std::string& why);
  Written write(const checkpoint::CheckpointContents& contents);
  Written write_beside(const SaveBeside& save);
  void say_taken(const SaveBeside& save) const;
  void count_failure(std::int64_t step);
  void say_not_taken(const Written& written) const;
  bool agree_that_it_holds(std::int64_t step, const std::string& wrong, std::int64_t now);

  comm::Channel& channel_;
  SaverOptions options_;
  // Used by rank 0; during a concurrent save only by its thread.
  checkpoint::Keeper keeper_, fallback_keeper_;
  checkpoint::Keeper* reading_ = nullptr;  ///< its newest checkpoint is being read back after save()
  std::int64_t reading_step_ = 0;
  std::int64_t failed_in_a_row_ = 0;
  std::int64_t retry_step_ = 0;
  std::atomic<bool> asks_ = false;               ///< the thread has ended; this rank must request settling
  std::unique_ptr<runtime::Watchdog> watchdog_;  ///< for that thread; created with the first save
  std::future<Written> beside_;                  ///< its destructor waits for the thread
};

}  // namespace octet::train
