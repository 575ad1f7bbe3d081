// Options of the data from the configuration: sets, tokens and sequences.
#pragma once

#include "octet/config/keys.h"
#include "octet/data/dataset.h"
#include "octet/data/mix.h"
#include "octet/data/template_encoder.h"

namespace octet::setup {

/// The data sets of a run. Evaluation sets have a separate list.
data::DataOptions data_options(const config::DataKeys& config);

/// How several data sets become one. Throws Error (usage) for weights that nothing reads.
data::MixOptions mix_options(const config::DataKeys& config);

/// How the configuration turns rows into tokens, for the model in the folder `model`.
data::TemplateEncoderOptions encoder_options(const config::DataKeys& config, const std::string& model);

/// How documents become the sequences that are trained.
enum class Packing {
  none,      ///< each document is one
  best_fit,  ///< whole documents, the best fit of all
  knapsack,  ///< whole documents, as LLaMA-Factory packs batches of rows
  blocks     ///< texts in a row, cut to length, like LLaMA-Factory's pre-training
};
Packing packing_of(const config::DataKeys& config);

}  // namespace octet::setup
