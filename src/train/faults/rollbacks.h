// Counts the returns of a run to a checkpoint.
#pragma once

#include <cstdint>

namespace octet::train {

/// Whether the run must roll back, and whether it then skips the data since the checkpoint.
enum class Back { no, same_data, other_data };

class Rollbacks {
 public:
  /// Most rollbacks without a checkpoint in between.
  static constexpr int kMost = 3;

  void request(Back how) { requested_ = how; }
  bool requested() const { return requested_ != Back::no; }
  /// Returns the request and clears it.
  Back take();
  /// Counts a rollback. `completed`: checkpoints that this process has completed. Returns whether there were
  /// too many rollbacks without a new checkpoint.
  bool begin(std::int64_t completed);
  /// Rollbacks since the run began, also before a restart.
  std::int64_t count() const { return count_; }
  /// Restores the count from a checkpoint, which may be older than the latest rollback.
  void restore(std::int64_t count);

 private:
  Back requested_ = Back::no;
  std::int64_t count_ = 0;
  int in_a_row_ = 0;            ///< without a checkpoint in between
  std::int64_t completed_ = 0;  ///< at the last rollback
};

}  // namespace octet::train
