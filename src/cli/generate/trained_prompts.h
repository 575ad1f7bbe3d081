// Whether prompts are rows that the answering model was trained on.
#pragma once

#include "generate/generate_options.h"
#include "generate/model_source.h"

namespace octet::cli {

/// Warns if prompts of the file that is judged are rows of the training data of the model's run. A model
/// without its run's configuration is not checked. Throws no Error for training data that are gone.
void warn_of_trained_prompts(const GenerateOptions& options, const ModelSource& source);

}  // namespace octet::cli
