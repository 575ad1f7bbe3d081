// The command that answers: a conversation, the prompts of a file, or the prompts that a run was trained on.
#pragma once

#include <string>
#include <vector>

#include "octet/answers/generate_options.h"
#include "octet/runtime/session.h"

namespace octet::answers {

/// A call of `trainer generate`.
struct GenerateCall {
  GenerateOptions options;
  std::vector<std::string> given;  ///< settings on the command line, by their names in generation_config.json
  bool model_defaults = true;      ///< other settings come from that file
};

/// Finds and loads the model of the call. Answers options.file, options.questions, or questions that are
/// typed in. Collective: all ranks of the job call it. Ranks of replicas with split layers follow their
/// leaders. Returns the exit code of this rank. Throws Error (usage) for settings that do not fit each other
/// or the model.
int answer(runtime::Session& session, const GenerateCall& call);

}  // namespace octet::answers
