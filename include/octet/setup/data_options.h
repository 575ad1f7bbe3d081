// What the configuration makes of data: which sets, as which tokens, in which sequences.
#pragma once

#include "octet/config/config.h"
#include "octet/data/dataset.h"
#include "octet/data/mix.h"
#include "octet/data/template_encoder.h"

namespace octet::setup {

/// Where the data sets of a run are; those that are evaluated have a list of their own.
data::DataOptions data_options(const config::Config& config);

/// How several data sets become one. Throws Error (usage) for weights that nothing reads.
data::MixOptions mix_options(const config::Config& config);

/// How the configuration turns rows into tokens.
data::TemplateEncoderOptions encoder_options(const config::Config& config);

/// How documents become the sequences that are trained.
enum class Packing {
  none,      ///< each document is one
  best_fit,  ///< whole documents, the best fit of all
  knapsack,  ///< whole documents, as LLaMA-Factory packs batches of rows
  blocks     ///< texts one behind the other, cut, as LLaMA-Factory's pre-training does
};
Packing packing_of(const config::Config& config);

}  // namespace octet::setup
