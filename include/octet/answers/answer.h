// The answers room: questions of terminals and files, answered or scored by a model. It has the rows of a
// file, their prompts, the journal of finished rows, retries, comparisons with right answers, and the files
// of answers and scores. Decoding belongs to generate. The command line of `trainer generate` belongs to cli.
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
