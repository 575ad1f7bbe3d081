// The command `trainer generate`: answers questions that a user types, or the questions of a file.
#pragma once

#include <string>
#include <vector>

#include "octet/answers/generate_options.h"
#include "octet/runtime/session.h"

namespace octet::answers {

/// A call of `trainer generate`.
struct GenerateCall {
  GenerateOptions options;
  std::vector<std::string>
      given;                   ///< names of the settings on the command line, as in generation_config.json
  bool model_defaults = true;  ///< generation_config.json of the model gives the other settings
};

/// Finds and loads the model of the call. Answers options.file, options.questions, or questions that are
/// typed in. Collective: all ranks of the job call it. If several ranks hold one copy of the model, one of
/// them leads and the others follow it. Returns the exit code of this rank. Throws Error (usage) for settings
/// that contradict each other or do not fit the model.
int answer(runtime::Session& session, const GenerateCall& call);

}  // namespace octet::answers
