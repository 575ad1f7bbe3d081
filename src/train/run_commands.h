// Commands that a run suggests when it ends.
#pragma once

#include <string>
#include <vector>

#include "octet/config/keys.h"

namespace octet::text {
class ChatTemplate;
}

namespace octet::train {

/// How a run was started.
struct Launch {
  std::vector<std::string> command_line;  ///< of a rank
  int ranks = 1;
  bool supervised = false;      ///< by launch/supervise
  bool hands_on_stops = false;  ///< by launch/mpirun
};

/// Returns the command that resumes a stopped run from `checkpoint`. Runs on several hosts also need the
/// options of the launcher, which ranks do not see.
std::string resuming_command(const Launch& launch, const config::SaveKeys& config,
                             const std::string& checkpoint);

/// The model of a finished run.
struct FinishedModel {
  std::string folder;              ///< output_dir
  std::string template_name = {};  ///< of the run; "": a model of texts
  bool scores = false;             ///< a reward model
};

/// Returns commands to try with the model of a finished run. `program`: the first word of the command line.
std::vector<std::string> next_commands(const std::string& program, const config::ModelKeys& config,
                                       const FinishedModel& model);

}  // namespace octet::train
