#include "octet/feed/corpus.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/random.h"
#include "octet/base/strings.h"
#include "octet/comm/job.h"
#include "octet/config/keys.h"
#include "octet/data/encoded.h"
#include "octet/data/encoder.h"
#include "octet/data/mix.h"
#include "octet/data/token_cache.h"
#include "octet/feed/gather.h"
#include "octet/runtime/session.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "row_report.h"

namespace octet::feed {

// Number of rows that are held out for evaluation.

/// Returns the number of rows that val_size holds out of `rows`. Throws Error if none are left to train.
std::int64_t held_out_of(std::int64_t rows, const config::DatasetKeys& config);

// Converts rows to tokens: on all ranks together, or from tokenized_path.

/// Rows of a mix: all rows, or the rows at `places`.
struct Rows {
  const data::RowMix& mix;
  const std::vector<std::int64_t>* places = nullptr;
  std::int64_t size() const { return places ? static_cast<std::int64_t>(places->size()) : mix.size(); }
};

/// Tokenises a contiguous share of the rows on each rank and returns all tokens on every rank. Throws Error
/// if more rows than allowed cannot be read.
data::Encoded encode_together(runtime::Session& session, const config::DataKeys& config, const Rows& rows,
                              const data::Encoder& encoder);

/// Returns all rows of a mix as tokens, from tokenized_path if it has them; otherwise tokenises and stores
/// them there. Logs events of the rows; `what` is their name.
data::Encoded tokens_of(runtime::Session& session, const config::DataKeys& config, const data::RowMix& mix,
                        const data::Encoder& encoder, const std::string& what);

namespace {

void require_usable(runtime::Session& session, const config::DataKeys& config, const data::Encoded& set) {
  session.job().together([&] {
    if (setup::refuses_long_rows(config) && set.counts.truncated > 0)
      throw data::truncated_rows(set.counts, config.cutoff_len);
    if (set.counts.broken > config.max_broken_rows)
      throw data::too_many_broken(set.counts, config.max_broken_rows);
  });
}

// Returns the tokens in tokenized_path if all ranks find them; logs the reason otherwise.
std::optional<data::Encoded> load_tokens(runtime::Session& session, const config::DatasetKeys& config,
                                         const data::Recipe& recipe, const std::string& what) {
  const data::TokenCache cache(*config.tokenized_path);
  bool damaged = false;
  std::optional<data::Encoded> found;
  if (!config.overwrite_cache) found = cache.load(recipe, &damaged);
  // If one rank does not find the tokens, no rank uses them.
  if (session.job().all_max(found ? 0 : 1) == 0) {
    if (session.prints()) log::debug(what + ": tokens taken from " + cache.path(recipe));
    return found;
  }
  if (session.prints() && damaged) {
    log::warn(what + ": " + cache.path(recipe) + " is damaged; the data are tokenised again",
              log::Importance::setting);
  } else if (session.prints() && !config.overwrite_cache) {
    const auto differences = cache.nearest_differences(recipe);
    if (!differences.empty()) {
      std::string text =
          what + ": tokenized_path holds tokens of other data or settings; the data are tokenised again";
      for (std::size_t i = 0; i < std::min<std::size_t>(5, differences.size()); ++i)
        text += "\n  " + differences[i];
      if (differences.size() > 5) text += "\n  and " + std::to_string(differences.size() - 5) + " more";
      log::info(text);
    }
  }
  return std::nullopt;
}

// Writes the tokens once per file system: if ranks of another node do not see the file, one of them writes
// it, too.
void store_tokens(runtime::Session& session, const config::DatasetKeys& config, const data::Recipe& recipe,
                  const data::Encoded& set, const std::string& what) {
  const data::TokenCache cache(*config.tokenized_path);
  session.job().together([&] {
    if (!session.prints()) return;
    cache.store(recipe, set);
    log::debug(what + ": tokens kept in " + cache.path(recipe));
  });
  session.job().together([&] {
    if (session.place().local_rank == 0 && !path_exists(cache.path(recipe))) cache.store(recipe, set);
  });
}

}  // namespace

data::Encoded encode_together(runtime::Session& session, const config::DataKeys& config, const Rows& which,
                              const data::Encoder& encoder) {
  const std::int64_t rows = which.size();
  const comm::Place& place = session.place();
  data::Encoded own;
  session.job().together([&] {
    data::EncodeShare share;
    share.first_row = rows * place.rank / place.size;
    share.last_row = rows * (place.rank + 1) / place.size;
    share.threads = setup::tokenising_threads(config);
    share.max_broken = config.max_broken_rows;
    share.name_truncated = setup::refuses_long_rows(config);
    share.places = which.places;
    own = data::encode_rows(which.mix, encoder, share);
  });
  data::Encoded all = gather_parts(session.job(), std::move(own));
  require_usable(session, config, all);
  return all;
}

data::Encoded tokens_of(runtime::Session& session, const config::DataKeys& config, const data::RowMix& mix,
                        const data::Encoder& encoder, const std::string& what) {
  std::optional<data::Encoded> all;
  data::Recipe recipe;
  if (config.tokenized_path) {
    session.job().together([&] {
      recipe = encoder.recipe();
      for (auto& part : mix.recipe()) recipe.push_back(std::move(part));
    });
    all = load_tokens(session, config, recipe, what);
  }
  const bool made = !all;
  if (made) all = encode_together(session, config, {mix}, encoder);
  if (!made) require_usable(session, config, *all);
  if (made && config.tokenized_path) store_tokens(session, config, recipe, *all, what);
  if (session.prints()) report_counts(*all, what);
  return std::move(*all);
}

namespace {

// Returns the rows that val_size holds out: for a stream like prepare_stream(), otherwise like
// data::hold_out().
std::set<data::RowKey> held_out_rows(const data::RowMix& mix, const config::DataKeys& config) {
  std::set<data::RowKey> keys;
  if (config.val_size <= 0) return keys;
  const auto add = [&](std::int64_t place) {
    const data::RowMix::Place at = mix.at(place);
    keys.emplace(at.file, at.row);
  };
  const std::vector<std::int64_t> distinct =
      config.streaming ? std::vector<std::int64_t>() : mix.distinct_rows();
  if (distinct.empty()) {
    std::ranges::for_each(mix.choose(held_out_of(mix.size(), config), config.order_seed()), add);
    return keys;
  }
  const std::int64_t rows = 1 + *std::ranges::max_element(distinct);
  const std::set<std::int64_t> chosen =
      data::held_out_numbers(rows, held_out_of(rows, config), config.order_seed());
  for (std::int64_t place = 0; place < mix.size(); ++place) {
    if (chosen.contains(distinct[static_cast<std::size_t>(place)])) add(place);
  }
  return keys;
}

}  // namespace

bool visit_trained_rows(const config::DataKeys& config, std::int64_t most,
                        const std::function<void(const data::Sample&)>& visit) {
  const data::RowMix mix(data::open_datasets(setup::data_options(config)), setup::mix_options(config));
  const std::set<data::RowKey> held_out = held_out_rows(mix, config);
  for (std::int64_t p = 0; p < std::min(most, mix.size()); ++p) {
    const data::RowMix::Place place = mix.at(p);
    if (held_out.contains({place.file, place.row})) continue;
    std::string why;
    try {
      const auto sample = data::convert_row(place.file->row(place.row), place.source->format, &why);
      if (sample) visit(*sample);
    } catch (const Error& e) {
      if (e.code() == ExitCode::storage) throw;  // the run skips this row, too
    }
  }
  return most >= mix.size();
}

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
    // The line is printed if texts are not read, or if fields determine how texts are trained. Otherwise it
    // is only
    // logged.
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

// Warns if all judged answers are desirable, or none is.
void warn_of_one_kind(const data::Encoded& set) {
  std::int64_t desirable = 0;
  for (std::int64_t d = 0; d < set.documents(); ++d)
    desirable +=
        set.labels[static_cast<std::size_t>(set.begins[static_cast<std::size_t>(d)])] == data::kUndesirable
            ? 0
            : 1;
  if (desirable > 0 && desirable < set.documents()) return;
  const bool good = desirable > 0;
  log::warn(std::string("all judged answers are ") + (good ? "desirable" : "undesirable") +
                ": stage: kto learns from both kinds" +
                (good ? "" : ", and undesirable answers alone make the model worse") +
                "; to do: check the column of judgements, or add rows with " + (good ? "false" : "true"),
            log::Importance::training);
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
  if (setup::trains_judged(config) && session.prints()) warn_of_one_kind(corpus.training);
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

namespace {

// The tokens of a packed sequence. Both answers of a pair may have cutoff_len tokens.
std::int64_t packed_tokens(const config::DataKeys& config) {
  return setup::trains_pairs(config) ? 2 * config.cutoff_len : config.cutoff_len;
}

}  // namespace

void report_packing(const data::Encoded& set, const data::Items& items, const config::DataKeys& config) {
  if (!config.packing || items.size() == 0) return;
  std::int64_t tokens = 0;
  for (const std::int64_t d : items.documents) tokens += set.length(d);
  const double fill =
      100.0 * static_cast<double>(tokens) / static_cast<double>(packed_tokens(config) * items.size());
  log::debug("packing: " + with_commas(static_cast<std::int64_t>(items.documents.size())) + " documents in " +
             with_commas(items.size()) + " sequences, " + std::to_string(fill).substr(0, 5) + " % full");
}

namespace {

// Returns the sequences of judged answers, and makes the mismatched answers of the set.
data::Items lay_out_judged(data::Encoded& set, const config::DataKeys& config) {
  data::Items items = config.packing ? data::pack_best_fit(set, config.cutoff_len) : data::one_each(set);
  items.judged = true;
  set.mismatched = std::make_shared<data::Encoded>(
      data::mismatched(set, {.batch = config.preprocessing_batch_size, .cutoff_len = config.cutoff_len}));
  return items;
}

}  // namespace

data::Items lay_out(data::Encoded& set, const config::DataKeys& config, const data::Encoder& encoder) {
  const bool pairs = setup::trains_pairs(config);
  if (setup::trains_judged(config)) return lay_out_judged(set, config);
  if (pairs) {
    data::Items items =
        config.packing ? data::pack_pairs(set, packed_tokens(config)) : data::one_each_pair(set);
    items.scored = setup::trains_rewards(config);
    return items;
  }
  switch (setup::packing_of(config)) {
    case setup::Packing::none:
      return data::one_each(set);
    case setup::Packing::best_fit:
      return data::pack_best_fit(set, packed_tokens(config));
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
