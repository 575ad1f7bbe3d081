#include "octet/train/corpus.h"

#include <algorithm>
#include <cmath>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/device/cpu.h"

namespace octet::train {
namespace {

// Pieces of the exchange: no message has to hold a whole data set.
constexpr std::size_t kMessageBytes = std::size_t{64} << 20;

// Every rank's share, in rank order, on every rank.
data::Encoded exchange(comm::Communicator& communicator, const data::Encoded& own) {
  const std::string bytes = own.to_bytes();
  const auto pieces = static_cast<std::size_t>(
      communicator.all_max(static_cast<std::int64_t>((bytes.size() + kMessageBytes - 1) / kMessageBytes)));
  std::vector<std::string> parts(static_cast<std::size_t>(communicator.size()));
  for (std::size_t piece = 0; piece < pieces; ++piece) {
    const std::size_t begin = std::min(bytes.size(), piece * kMessageBytes);
    const auto all = communicator.all_gather_bytes(bytes.substr(begin, kMessageBytes));
    for (std::size_t rank = 0; rank < parts.size(); ++rank) parts[rank] += all[rank];
  }
  data::Encoded whole;
  for (const std::string& part : parts) whole.append(data::Encoded::from_bytes(part));
  return whole;
}

std::int64_t rows_of(const std::vector<data::DataSource>& sources) {
  std::int64_t rows = 0;
  for (const auto& source : sources) rows += source.rows;
  return rows;
}

// Tokenises this rank's contiguous share of all rows and exchanges the shares.
data::Encoded encode_together(Session& session, const config::Config& config,
                              const std::vector<data::DataSource>& sources, const data::Encoder& encoder) {
  const std::int64_t rows = rows_of(sources);
  const comm::Place& place = session.place();
  data::Encoded own;
  session.communicator().together([&] {
    data::EncodeShare share;
    share.first_row = rows * place.rank / place.size;
    share.last_row = rows * (place.rank + 1) / place.size;
    share.threads = static_cast<int>(config.preprocessing_num_workers.value_or(cpu::op_threads()));
    own = data::encode_rows(sources, encoder, share);
  });
  return exchange(session.communicator(), own);
}

void report_counts(const data::Encoded& set, const std::string& what, bool prints) {
  if (!prints) return;
  const data::EncodingCounts& c = set.counts;
  log::info(what + ": " + with_commas(c.documents) + " documents of " + with_commas(c.rows) + " rows, " +
            with_commas(c.tokens) + " tokens, " + with_commas(c.trained) + " of them trained");
  const auto complain = [&what](std::int64_t count, const std::string& sentence) {
    if (count > 0) log::warn(what + ": " + with_commas(count) + " rows " + sentence);
  };
  complain(c.invalid, "were left out because they are not usable");
  for (const auto& reason : c.reasons) log::warn("  " + reason);
  complain(c.dropped, "were left out because the template gives nothing for them");
  complain(c.unlabelled, "were left out because they have no trained token");
  complain(c.truncated, "were cut to cutoff_len");
  complain(c.cut_answers, "lost the end of an answer: the model does not learn there to stop");
}

void require_documents(const data::Encoded& set, const std::string& what) {
  if (set.documents() > 0) return;
  throw Error({.what = what + " has nothing to train on",
               .expected = "at least one row with a trained token",
               .found = with_commas(set.counts.rows) + " rows, " + with_commas(set.counts.invalid) +
                        " not usable, " + with_commas(set.counts.dropped + set.counts.unlabelled) +
                        " without trained tokens",
               .where = set.counts.reasons.empty() ? "" : set.counts.reasons.front(),
               .fix = "check the columns of the data set, the template and cutoff_len",
               .code = ExitCode::usage,
               .agreed = true});
}

data::Items items_of(const data::Encoded& set, const config::Config& config) {
  return config.packing || config.neat_packing ? data::pack_best_fit(set, config.cutoff_len)
                                               : data::one_each(set);
}

}  // namespace

Corpus build_corpus(Session& session, const config::Config& config, const data::Encoder& encoder) {
  Corpus corpus;
  std::vector<data::DataSource> sources, held;
  session.communicator().together([&] {
    data::DataOptions options{.dataset = config.dataset,
                              .dataset_dir = config.dataset_dir,
                              .max_samples = config.max_samples,
                              .seed = config.order_seed()};
    sources = data::open_datasets(options);
    if (!config.eval_dataset.empty()) {
      options.dataset = config.eval_dataset;
      options.key = "eval_dataset";
      held = data::open_datasets(options);
    }
  });
  for (const auto& source : sources) corpus.names.push_back(source.name);
  data::Encoded all = encode_together(session, config, sources, encoder);
  report_counts(all, "training data", session.prints());
  require_documents(all, "the data set");
  if (config.val_size > 0 && held.empty()) {
    const std::int64_t rows = rows_of(sources);
    const auto count = static_cast<std::int64_t>(
        config.val_size < 1 ? std::ceil(config.val_size * static_cast<double>(rows)) : config.val_size);
    if (count >= rows) {
      throw Error({.what = "val_size leaves nothing to train on",
                   .expected = "fewer than the " + with_commas(rows) + " rows of the data set",
                   .found = with_commas(count),
                   .where = "configuration key 'val_size'",
                   .code = ExitCode::usage,
                   .agreed = true});
    }
    std::tie(corpus.training, corpus.evaluation) = data::hold_out(all, rows, count, config.order_seed());
    require_documents(corpus.training, "the data set without its held-out rows");
  } else {
    corpus.training = std::move(all);
    if (!held.empty()) {
      corpus.evaluation = encode_together(session, config, held, encoder);
      report_counts(corpus.evaluation, "evaluation data", session.prints());
      require_documents(corpus.evaluation, "the evaluation data set");
    }
  }
  corpus.training_items = items_of(corpus.training, config);
  corpus.evaluation_items = items_of(corpus.evaluation, config);
  if ((config.packing || config.neat_packing) && session.prints()) {
    const double fill = 100.0 * static_cast<double>(corpus.training.ids.size()) /
                        static_cast<double>(config.cutoff_len * corpus.training_items.size());
    log::info("packing: " + with_commas(corpus.training.documents()) + " documents in " +
              with_commas(corpus.training_items.size()) + " sequences, " + std::to_string(fill).substr(0, 5) +
              " % full");
  }
  corpus.fingerprint = corpus.training.fingerprint();
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

}  // namespace octet::train
