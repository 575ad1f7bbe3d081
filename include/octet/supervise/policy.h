// supervise: a job that is started again until it is complete.
//
// A supervisor starts `launch/mpirun ... trainer config.yaml` and waits for its end. The exit code and the
// files of the run decide whether it starts the run again. It is a separate process without MPI, and does not
// know ranks, devices or models: it reads the folder and the messages of the run. Decisions that need no
// process (this file, job_command.h, job_errors.h) are functions of values; supervisor.h combines them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace octet::supervise {

struct PolicyOptions {
  int most_starts = 10;   ///< starts in a row without progress, after which the supervisor gives up
  double first_wait = 1;  ///< seconds before the first restart without progress; doubled for each further one
  double longest_wait = 300;  ///< seconds
};

/// How a start ended.
struct Ended {
  int code = 0;             ///< of the launcher; 128 + N after signal N
  bool asked = false;       ///< the supervisor has passed on a request to stop
  bool finished = false;    ///< the folder of the run says that the run is complete
  bool unfinished = false;  ///< the folder says that it is not complete
  bool progressed = false;  ///< there is a checkpoint of a later step than before this start
  std::int64_t step = -1;   ///< the last finished step; -1: unknown
};

enum class Next { end, start };

struct Decision {
  Next next = Next::end;
  int code = 0;     ///< exit code of the supervisor, if it ends
  double wait = 0;  ///< seconds before the next start
  std::string why;  ///< reason, if it ends and the run is not complete: one sentence
};

/// Decides what follows an ended start: the table of exit codes in docs/checkpoints.md.
class Policy {
 public:
  explicit Policy(PolicyOptions options) : options_(options) {}
  Decision decide(const Ended& ended);
  /// Resets the counts, because the job has changed (fewer ranks).
  void begin_anew() { without_progress_ = same_end_ = 0; }

 private:
  PolicyOptions options_;
  int without_progress_ = 0;
  int same_end_ = 0;  ///< starts in a row that the same signal ended after the same step
  Ended last_;
};

/// Returns the meaning of an exit code in a few words: "stopped as asked", "signal 9 ended a process of the
/// job".
std::string meaning_of(int code);

// Goodput: the share of time that trained steps which were not lost.

/// Counts each step of several starts of a run once: steps after the checkpoint from which a later start
/// resumed were lost. The steps of a start count as equally long.
class Goodput {
 public:
  /// A start resumes after `step`: later steps of earlier starts are lost.
  void begin(std::int64_t step);
  /// The current start has done its steps up to `step` in `seconds`.
  void reach(std::int64_t step, double seconds);
  /// Returns the seconds of the steps that were not lost.
  double seconds() const;
  /// Returns seconds() / wall; 0 if `wall` is 0.
  double share(double wall) const { return wall > 0 ? seconds() / wall : 0; }

 private:
  struct Part {
    std::int64_t first = 0;  ///< the step before its first step
    std::int64_t last = 0;   ///< its last step that was not lost
    double seconds = 0;      ///< of the steps that were not lost
  };
  std::vector<Part> parts_;
};

}  // namespace octet::supervise
