// The data of a run, the same on all ranks, and the rows that the run trains.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "octet/config/keys.h"
#include "octet/data/dataset.h"
#include "octet/data/encoded.h"
#include "octet/data/encoder.h"
#include "octet/runtime/session.h"

namespace octet::feed {

// The rows that a run trains, so that they can be recognised elsewhere.

/// Calls `visit` for rows of the training data of `config` that can be read and used, at most for `most`
/// rows. Rows that val_size holds out are left out. Returns whether all rows were visited. Throws Error like
/// check_datasets().
bool visit_trained_rows(const config::DataKeys& config, std::int64_t most,
                        const std::function<void(const data::Sample&)>& visit);

/// The data of a run, the same on all ranks.
struct Corpus {
  data::Encoded training;    ///< empty with streaming
  data::Encoded evaluation;  ///< no documents when nothing is evaluated
  data::Items training_items;
  data::Items evaluation_items;
  std::shared_ptr<const data::RowMix> rows;  ///< with streaming: the training rows; else null
  std::set<data::RowKey> held_out;           ///< of these rows
  std::vector<std::string> names;            ///< of the data sets
  std::string fingerprint;                   ///< of the training documents; with streaming of their files
};

/// Opens the data sets. Throws Error like build_corpus for a data set that is missing or cannot be read.
void check_datasets(const config::DataKeys& config);

/// Opens and tokenises the data sets: each rank tokenises its share of the rows, and all ranks get the whole.
/// Or reads the tokens from tokenized_path. With streaming, only the evaluation sets are tokenised. Logs the
/// numbers of refused, dropped and truncated rows. Throws Error if no trained token is left.
Corpus build_corpus(runtime::Session& session, const config::DataKeys& config, const data::Encoder& encoder);

/// The sequences that are trained, as packing and packing_strategy say; may put blocks in place of texts.
data::Items lay_out(data::Encoded& set, const config::DataKeys& config, const data::Encoder& encoder);

/// Logs what happened to the rows of a set.
void report_counts(const data::Encoded& set, const std::string& what);
/// Logs how full packed sequences are; nothing without packing.
void report_packing(const data::Encoded& set, const data::Items& items, const config::DataKeys& config);

/// The first example as it will be trained: ids, text, and the trained spans marked.
std::string show_example(const data::Encoded& set, const data::Encoder& encoder, bool colours);

}  // namespace octet::feed
