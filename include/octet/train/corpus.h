#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/config/config.h"
#include "octet/data/encode.h"
#include "octet/data/encoded.h"
#include "octet/train/session.h"

namespace octet::train {

/// The data of a run, the same on all ranks.
struct Corpus {
  data::Encoded training;
  data::Encoded evaluation;  ///< no documents when nothing is evaluated
  data::Items training_items;
  data::Items evaluation_items;
  std::vector<std::string> names;  ///< of the data sets
  std::string fingerprint;         ///< of the training documents
};

/// Opens the data sets, tokenises them, every rank its share of the rows, and gives all ranks the whole.
/// Counts what was refused, dropped and cut, and says it. Throws Error when nothing is left to train on.
Corpus build_corpus(Session& session, const config::Config& config, const data::Encoder& encoder);

/// The first example as it will be trained: ids, text, and the trained spans marked.
std::string show_example(const data::Encoded& set, const data::Encoder& encoder, bool colours);

}  // namespace octet::train
