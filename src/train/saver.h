// Saving the checkpoints of a run although disks fill up, fail, or give back other bytes than were written:
// between two steps, or beside them.
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
#include "octet/checkpoint/keeper.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/channel.h"
#include "octet/runtime/watchdog.h"

namespace octet::train {

struct SaverOptions {
  std::string folder;
  std::string fallback;           ///< tried where `folder` takes nothing; empty: none
  std::int64_t keep_last = 0;     ///< of each of the two; 0: all
  std::int64_t most_failed = 10;  ///< in a row, after which the run is to end
  std::int64_t retry_steps = 1;   ///< from a failed save to the next attempt
  bool reads_back = true;
  double most_seconds = 3e7;  ///< of writing, or reading back, beside the steps, before the process ends
};

/// The folder in `save_fallback_dir` that belongs to the run with this output folder.
std::string fallback_folder(const std::string& save_fallback_dir, const std::string& output_dir);

/// A save beside the steps, as one rank gives it.
struct SaveBeside {
  checkpoint::CheckpointContents contents;  ///< slices in memory that does not change until end() is back
  std::function<void()> wait;  ///< returns when that memory holds what it should; called on another thread
  std::chrono::steady_clock::time_point began = std::chrono::steady_clock::now();  ///< to be copied
  std::int64_t best = -1;  ///< the step whose checkpoint stays, if this one holds; -1: none
};

/// What became of a save beside the steps, the same on all ranks.
struct Ended {
  std::int64_t step = 0;
  std::string path;  ///< of the checkpoint, read back; empty: there is none
};

/// All ranks call its functions alike, and get the same answers.
class Saver {
 public:
  /// `channel`: what ranks say to each other about checkpoints; nobody else uses it, since a thread of the
  /// saver's own may. `trusted`: a checkpoint that was verified when the run began with it, or empty.
  Saver(comm::Channel& channel, SaverOptions options, const std::string& trusted);
  /// Waits for a save that is in flight.
  ~Saver() = default;

  /// The checkpoint of that step is not removed, wherever it lies; the one before that was kept so may be.
  void keep(std::int64_t step) { keeper_.keep(step), fallback_keeper_.keep(step); }
  /// Saves to the folder or, where that fails, to the fallback. Returns the checkpoint's path, or "" when
  /// neither took it: then rank 0 has said why, and it is counted.
  std::string save(const checkpoint::CheckpointContents& contents);
  /// Waits until the last checkpoint of save() has been read back. Returns false when it does not hold, which
  /// is counted as a failed save.
  bool holds();

  /// Begins the same on a thread of its own, reading back included, and says when the copy is made ("taken").
  /// None may be in flight.
  void begin(SaveBeside save);
  bool in_flight() const { return beside_.valid(); }
  /// Waits for the save in flight, counts it, and says what went wrong; nothing where there is none. `step`:
  /// steps done by now. Throws what ended the thread of this rank alone.
  std::optional<Ended> end(std::int64_t step);
  /// Of a rank: something is to be taken by holds() or end(), which need not wait for it.
  bool asks_to_settle() const;

  /// Whether a failed save is to be tried again behind this step.
  bool retries_at(std::int64_t step) const {
    return failed_in_a_row_ > 0 && !in_flight() && step >= retry_step_;
  }
  /// Whether so many have failed that the run is to end.
  bool gives_up() const { return failed_in_a_row_ >= options_.most_failed; }
  std::int64_t failed_in_a_row() const { return failed_in_a_row_; }

 private:
  /// What was written where. Paths and reasons are those of all ranks.
  struct Written {
    std::int64_t step = 0;
    std::string path, why;                 ///< path "": neither folder took it
    checkpoint::Keeper* keeper = nullptr;  ///< of the folder that did
    std::string wrong;                     ///< rank 0: what reading back beside the steps found
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
  // Of rank 0; of the thread beside the steps while a save is in flight.
  checkpoint::Keeper keeper_, fallback_keeper_;
  checkpoint::Keeper* reading_ = nullptr;  ///< the one whose newest is being read back behind save()
  std::int64_t reading_step_ = 0;
  std::int64_t failed_in_a_row_ = 0;
  std::int64_t retry_step_ = 0;
  std::atomic<bool> asks_ = false;  ///< the thread beside the steps has ended, and this rank is to say so
  std::unique_ptr<runtime::Watchdog> watchdog_;  ///< over that thread; made with the first
  std::future<Written> beside_;                  ///< waits for the thread when it goes
};

}  // namespace octet::train
