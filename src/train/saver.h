// Saving the checkpoints of a run although disks fill up, fail, or give back other bytes than were written.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "octet/base/error.h"
#include "octet/checkpoint/keeper.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/channel.h"

namespace octet::train {

struct SaverOptions {
  std::string folder;
  std::string fallback;           ///< tried where `folder` takes nothing; empty: none
  std::int64_t keep_last = 0;     ///< of each of the two; 0: all
  std::int64_t most_failed = 10;  ///< in a row, after which the run is to end
  std::int64_t retry_steps = 1;   ///< from a failed save to the next attempt
  bool reads_back = true;
};

/// The folder in `save_fallback_dir` that belongs to the run with this output folder.
std::string fallback_folder(const std::string& save_fallback_dir, const std::string& output_dir);

/// All ranks call its functions alike, and get the same answers.
class Saver {
 public:
  /// `channel`: what ranks say to each other about checkpoints. `trusted`: a checkpoint that was verified
  /// when the run began with it, or empty.
  Saver(comm::Channel& channel, SaverOptions options, const std::string& trusted);

  /// The checkpoint of that step is not removed, wherever it lies; the one before that was kept so may be.
  void keep(std::int64_t step) { keeper_.keep(step), fallback_keeper_.keep(step); }
  /// Saves to the folder or, where that fails, to the fallback. Returns the checkpoint's path, or "" when
  /// neither took it: then rank 0 has said why, and it is counted.
  std::string save(const checkpoint::CheckpointContents& contents);
  /// Waits until the last checkpoint has been read back. Returns false when it does not hold, which is
  /// counted as a failed save.
  bool holds();
  /// Of rank 0: the last checkpoint has been read back, so that holds() need not wait.
  bool is_read() const;

  /// Whether a failed save is to be tried again behind this step.
  bool retries_at(std::int64_t step) const { return failed_in_a_row_ > 0 && step >= retry_step_; }
  /// Whether so many have failed that the run is to end.
  bool gives_up() const { return failed_in_a_row_ >= options_.most_failed; }
  std::int64_t failed_in_a_row() const { return failed_in_a_row_; }

 private:
  std::string attempt(const std::string& folder, const checkpoint::CheckpointContents& contents,
                      std::string& why);
  void count_failure(std::int64_t step);

  comm::Channel& channel_;
  SaverOptions options_;
  // Of rank 0.
  checkpoint::Keeper keeper_, fallback_keeper_;
  checkpoint::Keeper* reading_ = nullptr;  ///< the one whose newest is being read back
  std::int64_t reading_step_ = 0;
  std::int64_t failed_in_a_row_ = 0;
  std::int64_t retry_step_ = 0;
};

}  // namespace octet::train
