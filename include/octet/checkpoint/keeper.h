// Which checkpoints of a folder count, and which may go: what a disk said to have written is read back from
// it.
#pragma once

#include <cstdint>
#include <future>
#include <set>
#include <string>

namespace octet::checkpoint {

/// Reads every byte of a checkpoint from the device, past the page cache where the file system allows that
/// (O_DIRECT, else pages are dropped first), and compares hashes. Throws Error (ExitCode::storage) naming the
/// place of the first byte that is not what was written.
void read_back(const std::string& path);

/// The checkpoints that a run has saved to one folder. A checkpoint counts when it has been read back; old
/// ones go only when enough newer ones count. One thread calls its functions.
class Keeper {
 public:
  /// Keeps the newest `keep_last` that count (0: all).
  Keeper(std::string folder, std::int64_t keep_last);
  /// Waits for what is being read.
  ~Keeper() = default;
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// The checkpoint of a step whose bytes were verified when the run began with it.
  void trust(std::int64_t step);
  /// The checkpoint of that step stays, however old it gets; the one for which this was said before does not.
  void keep(std::int64_t step) { best_ = step; }
  /// A checkpoint of `step` has been saved: begins to read it back on a thread of its own.
  void saved(std::int64_t step);
  /// Whether that one has been read; its result is taken by settle().
  bool is_read() const;
  /// Waits until it has been read, and removes what may go. Returns what is wrong with it: "" when it holds,
  /// or nothing was to be read. A damaged one stays where it is until enough newer ones count.
  std::string settle();

 private:
  std::string folder_;
  std::int64_t keep_last_;
  std::set<std::int64_t> counts_;  ///< steps
  std::int64_t step_ = -1;         ///< that is being read
  std::int64_t best_ = -1;         ///< that stays; -1: none
  std::future<std::string> reading_;
};

}  // namespace octet::checkpoint
