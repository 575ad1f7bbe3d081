// Supervises a job from its first start to its end.
#pragma once

#include <string>
#include <vector>

#include "octet/supervise/policy.h"

namespace octet::supervise {

struct Options {
  std::string launcher;            ///< launch/mpirun, or a replacement in tests
  std::vector<std::string> words;  ///< the launcher's arguments, the program, its configuration
  int min_ranks = 0;       ///< fewest ranks that may continue the job; 0: all ranks of the first start
  bool survive = false;    ///< if ranks end, the others continue in their processes, with at least min_ranks
  double end_within = 60;  ///< seconds between the job's first error and the end of the launcher
  PolicyOptions policy;
};

/// Starts the job, and restarts it until it is complete, cannot continue, or is stopped. Passes on every
/// TERM, INT, HUP, USR1 and USR2. Returns 0, or the exit code of the last start. Throws Error (usage) before
/// the first start if the words are not a training command.
///
/// The whole job ends when this process ends. Writes incidents.jsonl in the output folder of the run. Call it
/// once per process, from a process with one thread and no other children.
int supervise(const Options& options);

}  // namespace octet::supervise
