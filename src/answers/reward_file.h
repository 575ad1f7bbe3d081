// Scores of the rows of a file by a reward model.
#pragma once

#include "model_source.h"
#include "octet/answers/generate_options.h"
#include "octet/runtime/session.h"

namespace octet::answers {

/// Scores the answers of options.file with the reward model of `source`, and writes a line for each row:
/// {"reward": 0.5}, or for a chosen and a rejected answer {"chosen": 0.5, "rejected": -1.25}. The lines go to
/// options.out, or to the standard output. Collective: each rank scores a part of the rows. Throws Error
/// (usage) with the place of a row that has no answer or too many tokens.
void score_with_rewards(runtime::Session& session, const GenerateOptions& options, const ModelSource& source);

}  // namespace octet::answers
