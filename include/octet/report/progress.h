// How far a run under a supervisor has come: a small file in the output folder, written over after every
// step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace octet::report {

/// What one start of a run has done.
struct Progress {
  std::string job;                ///< the supervisor's name for this start: OCTETRUN_SUPERVISED
  int ranks = 0;                  ///< that take its steps; 0: an older record, which does not say
  std::int64_t first_step = 0;    ///< steps that were done when it began: 0, or those of its checkpoint
  std::int64_t step = 0;          ///< steps done
  std::int64_t total_steps = 0;   ///< of the whole run
  double step_seconds = 0;        ///< that the steps behind first_step took
  std::int64_t saved_step = -1;   ///< of its newest checkpoint; -1: it has saved none
  std::string saved;              ///< the path of that checkpoint
  std::int64_t memory_step = -1;  ///< of its newest checkpoint in memory; -1: it has taken none
  /// What it goes on from: "memory", "other host's memory" or "disk"; empty: it began afresh.
  std::string from;
  bool finished = false;  ///< the run is complete, its final model included
};

/// The supervisor's name for the start of this process, OCTETRUN_SUPERVISED; empty where there is none.
std::string supervised_start();
/// Its part that all starts of a run have in common: what stands before the last hyphen.
std::string run_of(const std::string& start);
inline std::string supervised_run() {
  return run_of(supervised_start());
}

/// "octet.progress" in an output folder.
std::string progress_path(const std::string& output_dir);

/// What the file of an output folder says; nothing where there is none, or one that was cut short.
std::optional<Progress> read_progress(const std::string& output_dir);

/// The file, open for writing. A record has always the same length and replaces the one before by one write,
/// so that a reader finds one of the two. A disk that takes none does not end the run: the record is missing.
class ProgressFile {
 public:
  explicit ProgressFile(const std::string& output_dir);
  ~ProgressFile();
  ProgressFile(const ProgressFile&) = delete;
  ProgressFile& operator=(const ProgressFile&) = delete;
  void write(const Progress& progress);

 private:
  int file_ = -1;
};

}  // namespace octet::report
