// The model that answers: a model folder or a training checkpoint, plus adapters.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "octet/answers/generate_options.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/model/architecture.h"
#include "octet/runtime/adapter_file.h"
#include "octet/runtime/initial_weights.h"

namespace octet::answers {

/// Sources of the weights, the tokenizer, the template and the settings of the model that answers.
struct ModelSource {
  std::string folder;  ///< config.json, generation_config.json, and weights unless `trained` has all
  std::vector<std::string> adapters;  ///< folders of adapters to add, in order
  /// The last adapter folder with a tokenizer, which has the tokens and the template of its training. Without
  /// one, `folder`.
  std::string tokenizer;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  ///< null: the model is read from folders
  config::Config run;                                        ///< of the run that wrote the checkpoint
  runtime::TrainedParameters trained;                        ///< empty for a checkpoint of adapters
  /// From config.json of `folder`. `stored` is cleared if all weights come from a checkpoint, which are
  /// floats even if the folder is quantised.
  model::Architecture architecture;
  /// Adapters to add to the weights: first the base adapters of the checkpoint's run, then its own, then
  /// `adapters`.
  std::vector<runtime::AddedAdapter> added;

  /// Whether the checkpoint's run gives the template and the tokenizer.
  bool words_of_run() const { return checkpoint != nullptr && tokenizer == folder; }
  /// Returns a hash of the weights, including tensors that a checkpoint replaces or adds.
  std::string fingerprint() const;
  /// Names the checkpoint and its step for people; "" if there is none.
  std::string told() const;
};

/// Resolves MODEL and --adapter. MODEL is a model folder, an adapter folder, a checkpoint, or an output
/// folder without a finished model. For an output folder the newest valid checkpoint is used.
///
/// Throws Error like Checkpoint for a damaged or incomplete checkpoint. Throws Error (usage) if the base
/// model of an adapter, or of the run of a checkpoint, is missing or differs.
ModelSource find_model(const GenerateOptions& options);

}  // namespace octet::answers
