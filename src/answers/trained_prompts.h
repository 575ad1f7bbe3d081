// Checks whether prompts are training rows of the model that answers.
#pragma once

#include "model_source.h"
#include "octet/answers/generate_options.h"

namespace octet::answers {

/// Warns if prompts of an evaluated file are rows in the training data of the model's run. A model without
/// the configuration of its run is not checked. Missing training data gives a warning, not an Error.
void warn_of_trained_prompts(const GenerateOptions& options, const ModelSource& source);

}  // namespace octet::answers
