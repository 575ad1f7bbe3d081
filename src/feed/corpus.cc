#include "octet/feed/corpus.h"

#include <algorithm>
#include <cmath>

#include "held_out.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/comm/job.h"
#include "octet/data/packing.h"
#include "octet/setup/data_options.h"
#include "report.h"
#include "tokenise.h"

namespace octet::feed {
namespace {

void require_documents(const data::Encoded& set, const std::string& what) {
  if (set.documents() > 0) return;
  throw Error({.what = what + " has no tokens to train",
               .expected = "at least one row with a trained token",
               .found = with_commas(set.counts.rows) + " rows, " + with_commas(set.counts.invalid) +
                        " not usable, " + with_commas(set.counts.broken) + " not readable, " +
                        with_commas(set.counts.dropped + set.counts.unlabelled) + " without trained tokens",
               .where = set.counts.reasons.empty() ? "" : set.counts.reasons.front(),
               .fix = "check the columns of the data set, the template and cutoff_len",
               .code = ExitCode::usage});
}

std::string listed(const std::vector<std::string>& names) {
  std::string all;
  for (const std::string& name : names) all += (all.empty() ? "" : ", ") + name;
  return all.empty() ? "none" : all;
}

void report_columns(const data::RowMix& mix) {
  for (const data::DataSource& source : mix.sources()) {
    const data::ColumnUse use = data::column_use(source);
    const std::string fields =
        use.message_fields.empty() ? "" : " (fields of messages: " + listed(use.message_fields) + ")";
    const std::string line = "data set " + source.name + ": columns read: " + listed(use.read) + fields +
                             "; columns with texts that are not read: " + listed(use.unread_texts);
    // Printed if texts are left out, or if fields decide how texts are trained. Otherwise only logged.
    if (use.decides || !use.unread_texts.empty()) {
      log::info(line, log::Importance::data);
    } else {
      log::debug(line);
    }
  }
}

struct Mixes {
  data::RowMix training, evaluation;
};

Mixes open_mixes(const config::DataKeys& config) {
  Mixes mixes;
  data::DataOptions options = setup::data_options(config);
  mixes.training = data::RowMix(data::open_datasets(options), setup::mix_options(config));
  if (!config.eval_dataset.empty()) {
    options.dataset = config.eval_dataset;
    options.split = config.dataset_test_split.value_or("");
    options.evaluates = true;
    options.key = "eval_dataset";
    mixes.evaluation = data::RowMix(data::open_datasets(options), {});
  }
  return mixes;
}

// Prepares a stream: with streaming only evaluation data are tokenised now.
void prepare_stream(runtime::Session& session, const config::DataKeys& config, const data::Encoder& encoder,
                    Mixes mixes, Corpus& corpus) {
  comm::Job& job = session.job();
  auto rows = std::make_shared<const data::RowMix>(std::move(mixes.training));
  job.together([&] {
    std::string words = std::to_string(config.buffer_size);
    for (const data::Recipe& recipe : {encoder.recipe(), rows->recipe()}) {
      for (const auto& [name, value] : recipe) words += '\n' + name + '\n' + value;
    }
    corpus.fingerprint = hash128_hex(words);
  });
  if (config.val_size > 0) {
    std::vector<std::int64_t> places;
    job.together([&] {
      places = rows->choose(held_out_of(rows->size(), config), config.order_seed());
      for (const std::int64_t p : places) {
        const auto place = rows->at(p);
        corpus.held_out.emplace(place.file, place.row);
      }
    });
    corpus.evaluation = encode_together(session, config, {*rows, &places}, encoder);
  } else if (mixes.evaluation.size() > 0) {
    corpus.evaluation = encode_together(session, config, {mixes.evaluation}, encoder);
  }
  if (config.val_size > 0 || mixes.evaluation.size() > 0) {
    if (session.prints()) report_counts(corpus.evaluation, "evaluation data");
    job.together([&] { require_documents(corpus.evaluation, "the evaluation data set"); });
  }
  corpus.rows = std::move(rows);
}

// Tokenises all rows into memory.
void prepare_indexed(runtime::Session& session, const config::DataKeys& config, const data::Encoder& encoder,
                     const Mixes& mixes, Corpus& corpus) {
  comm::Job& job = session.job();
  data::Encoded all = tokens_of(session, config, mixes.training, encoder, "training data");
  job.together([&] { require_documents(all, "the data set"); });
  if (config.val_size > 0) {
    std::vector<std::int64_t> distinct = mixes.training.distinct_rows();
    const std::int64_t rows =
        distinct.empty() ? mixes.training.size() : 1 + *std::ranges::max_element(distinct);
    std::int64_t count = 0;
    job.together([&] { count = held_out_of(rows, config); });
    std::tie(corpus.training, corpus.evaluation) = data::hold_out(
        all, {.rows = rows, .count = count, .seed = config.order_seed(), .distinct = std::move(distinct)});
    job.together([&] { require_documents(corpus.training, "the data set without its held-out rows"); });
  } else {
    corpus.training = std::move(all);
  }
  if (mixes.evaluation.size() > 0) {
    corpus.evaluation = tokens_of(session, config, mixes.evaluation, encoder, "evaluation data");
    job.together([&] { require_documents(corpus.evaluation, "the evaluation data set"); });
  }
  corpus.training_items = lay_out(corpus.training, config, encoder);
  job.together(
      [&] { require_documents(corpus.training, "the training data cut into blocks of cutoff_len"); });
  if (session.prints()) report_packing(corpus.training, corpus.training_items, config);
  corpus.fingerprint = corpus.training.fingerprint();
}

}  // namespace

std::int64_t held_out_of(std::int64_t rows, const config::DatasetKeys& config) {
  const auto count = static_cast<std::int64_t>(
      config.val_size < 1 ? std::ceil(config.val_size * static_cast<double>(rows)) : config.val_size);
  if (count < rows) return count;
  throw Error({.what = "val_size leaves no rows for training",
               .expected = "fewer than the " + with_commas(rows) + " rows of the data set",
               .found = with_commas(count),
               .where = "configuration key 'val_size'",
               .fix = "hold out fewer rows",
               .code = ExitCode::usage});
}

void report_counts(const data::Encoded& set, const std::string& what) {
  report(set.counts, what);
}

void report_packing(const data::Encoded& set, const data::Items& items, const config::DataKeys& config) {
  if (!config.packing || items.size() == 0) return;
  std::int64_t tokens = 0;
  for (const std::int64_t d : items.documents) tokens += set.length(d);
  const double fill =
      100.0 * static_cast<double>(tokens) / static_cast<double>(config.cutoff_len * items.size());
  log::debug("packing: " + with_commas(static_cast<std::int64_t>(items.documents.size())) + " documents in " +
             with_commas(items.size()) + " sequences, " + std::to_string(fill).substr(0, 5) + " % full");
}

data::Items lay_out(data::Encoded& set, const config::DataKeys& config, const data::Encoder& encoder) {
  switch (setup::packing_of(config)) {
    case setup::Packing::none:
      return data::one_each(set);
    case setup::Packing::best_fit:
      return data::pack_best_fit(set, config.cutoff_len);
    case setup::Packing::blocks:
      set = data::cut_blocks(set, {.length = config.cutoff_len,
                                   .batch_rows = config.preprocessing_batch_size,
                                   .first_token = encoder.text_bos_id()});
      return data::one_each(set);
    case setup::Packing::knapsack:
      break;
  }
  return data::pack_knapsack(set, {.capacity = config.cutoff_len - 1,
                                   .batch_rows = config.preprocessing_batch_size,
                                   .shared_context = !config.neat_packing});
}

void check_datasets(const config::DataKeys& config) {
  static_cast<void>(open_mixes(config));
}

Corpus build_corpus(runtime::Session& session, const config::DataKeys& config, const data::Encoder& encoder) {
  Corpus corpus;
  Mixes mixes;
  session.job().together([&] { mixes = open_mixes(config); });
  for (const auto& source : mixes.training.sources()) corpus.names.push_back(source.name);
  session.job().together([&] {
    if (!session.prints()) return;
    report_columns(mixes.training);
    report_columns(mixes.evaluation);
  });
  if (config.streaming) {
    prepare_stream(session, config, encoder, std::move(mixes), corpus);
  } else {
    prepare_indexed(session, config, encoder, mixes, corpus);
  }
  corpus.evaluation_items = lay_out(corpus.evaluation, config, encoder);
  return corpus;
}

std::string show_example(const data::Encoded& set, const data::Encoder& encoder, bool colours) {
  if (set.documents() == 0) return "";
  const std::int64_t length = std::min<std::int64_t>(set.length(0), 512);
  std::string text, ids;
  bool trained = false;
  std::vector<std::int32_t> run;
  const auto flush = [&] {
    if (run.empty()) return;
    const std::string piece = encoder.decode(run);
    text += !trained ? piece : colours ? "\033[32m" + piece + "\033[0m" : "[[" + piece + "]]";
    run.clear();
  };
  for (std::int64_t t = 0; t < length; ++t) {
    const auto i = static_cast<std::size_t>(set.begins[0] + t);
    if ((set.labels[i] >= 0) != trained) {
      flush();
      trained = set.labels[i] >= 0;
    }
    run.push_back(set.ids[i]);
    if (t < 64) ids += (t ? ", " : "") + std::to_string(set.ids[i]);
  }
  flush();
  return "first example (trained " + std::string(colours ? "green" : "in [[ ]]") + "):\n" + text +
         (length < set.length(0) ? "…" : "") + "\ninput_ids: [" + ids + (set.length(0) > 64 ? ", …" : "") +
         "]";
}

}  // namespace octet::feed
