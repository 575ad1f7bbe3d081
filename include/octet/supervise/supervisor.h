// A job, from its first start to its end.
#pragma once

#include <string>
#include <vector>

#include "octet/supervise/policy.h"

namespace octet::supervise {

struct Options {
  std::string launcher;            ///< launch/mpirun, or what stands in for it
  std::vector<std::string> words;  ///< the launcher's arguments, the program, its configuration
  int min_ranks = 0;               ///< fewest ranks that the job may go on with; 0: as many as it began with
  bool survive = false;            ///< ranks go on in their processes where others end, as few as min_ranks
  double end_within = 60;          ///< seconds that the launcher has from the job's first error to its end
  PolicyOptions policy;
};

/// Starts the job, and again until it is complete, cannot go on, or is stopped. Hands on TERM, INT, HUP, USR1
/// and USR2, each as often as it comes. Returns the exit code: 0, or that of the last start. Throws Error
/// (usage) where the words are no training, before anything is started.
///
/// All of the job ends when this process does. Writes incidents.jsonl in the run's output folder. One to a
/// process, which has one thread and no other children.
int supervise(const Options& options);

}  // namespace octet::supervise
