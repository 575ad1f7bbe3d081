// How far a run under a supervisor has come: a small file in the output folder, written over after every
// step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace octet::report {

/// The progress of one start of a run.
struct Progress {
  std::string job;                ///< the supervisor's name for this start: OCTETRUN_SUPERVISED
  int ranks = 0;                  ///< that take its steps; 0: an older record, which does not say
  std::int64_t first_step = 0;    ///< steps done when it began: 0, or the step of its checkpoint
  std::int64_t step = 0;          ///< steps done
  std::int64_t total_steps = 0;   ///< of the whole run
  double step_seconds = 0;        ///< time of the steps after first_step
  std::int64_t saved_step = -1;   ///< of its newest checkpoint; -1: it has saved none
  std::string saved;              ///< the path of that checkpoint
  std::int64_t memory_step = -1;  ///< of its newest checkpoint in memory; -1: it has taken none
  /// Source of the checkpoint that it resumed from: "memory", "other host's memory" or "disk"; empty: none.
  std::string from;
  bool finished = false;  ///< the run is complete, its final model included
};

/// The supervisor's name for the start of this process, OCTETRUN_SUPERVISED; empty where there is none.
std::string supervised_start();
/// The part that all starts of a run have in common: the text before the last hyphen.
std::string run_of(const std::string& start);
inline std::string supervised_run() {
  return run_of(supervised_start());
}

/// "octet.progress" in an output folder.
std::string progress_path(const std::string& output_dir);

/// Reads the file of an output folder; empty if there is none, or if it is truncated.
std::optional<Progress> read_progress(const std::string& output_dir);

/// The file, open for writing. All records have the same length, and one write replaces the previous record,
/// so a reader finds the old or the new one. If the disk refuses the write, the run continues and the record
/// is missing.
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
