// What answers: a model's folder or a checkpoint of training, and adapters on top.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "generate/generate_options.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/config.h"
#include "octet/model/architecture.h"
#include "octet/runtime/adapter_file.h"
#include "octet/runtime/trained_parameters.h"

namespace octet::cli {

/// Where weights, tokenizer, template and settings of an answering model come from.
struct ModelSource {
  std::string folder;  ///< config.json, generation_config.json, and weights unless `trained` has all
  std::vector<std::string> adapters;  ///< folders of adapters on top, in order
  /// The last adapter that brings a tokenizer, with the tokens and the template of its training; else
  /// `folder`.
  std::string tokenizer;
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  ///< that answers; null: a folder does
  config::Config run;                                        ///< of the run that wrote it
  runtime::TrainedParameters trained;                        ///< empty for a checkpoint of adapters
  /// As the folder's config.json says. Parameters of a checkpoint are floats where the folder's are
  /// quantised.
  model::Architecture architecture;
  /// To the weights: adapters that the checkpoint's run trained on top of, its own, then `adapters`.
  std::vector<runtime::AddedAdapter> added;

  /// Template and tokenizer are those of the checkpoint's run.
  bool words_of_run() const { return checkpoint != nullptr && tokenizer == folder; }
  /// Of the weights and of what a checkpoint holds in their place or adds to them.
  std::string fingerprint() const;
  /// Which checkpoint answers and of which step, for people; "" for a folder.
  std::string told() const;
};

/// What MODEL and --adapter name. MODEL is a model's folder, that of an adapter, a checkpoint, or an output
/// folder that holds checkpoints and no finished model yet, of which the newest that holds answers. Throws
/// Error as Checkpoint does for a checkpoint that is damaged or not complete, and (usage) where the model
/// under adapters, or the one that a checkpoint's run began with, is not there or another one.
ModelSource find_model(const GenerateOptions& options);

}  // namespace octet::cli
