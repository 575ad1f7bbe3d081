#include "octet/train/corpus.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <system_error>

#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/data/packing.h"
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

std::vector<double> weights_of(const config::Config& config) {
  std::vector<double> weights;
  for (const std::string& text : config.interleave_probs) {
    double weight = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), weight);
    if (error != std::errc() || end != text.data() + text.size()) weight = -1;  // refused with the others
    weights.push_back(weight);
  }
  if (!weights.empty() && config.mix_strategy == "concat") {
    throw Error({.what = "interleave_probs is read only when datasets are interleaved",
                 .expected = "mix_strategy: interleave_under, interleave_over or interleave_once",
                 .found = "mix_strategy: concat",
                 .where = "configuration key 'interleave_probs'",
                 .code = ExitCode::usage});
  }
  return weights;
}

// Tokenises this rank's contiguous share of all rows and exchanges the shares.
data::Encoded encode_together(Session& session, const config::Config& config, const data::RowMix& mix,
                              const data::Encoder& encoder) {
  const std::int64_t rows = mix.size();
  const comm::Place& place = session.place();
  data::Encoded own;
  session.communicator().together([&] {
    data::EncodeShare share;
    share.first_row = rows * place.rank / place.size;
    share.last_row = rows * (place.rank + 1) / place.size;
    share.threads = static_cast<int>(config.preprocessing_num_workers.value_or(cpu::op_threads()));
    share.max_broken = config.max_broken_rows;
    own = data::encode_rows(mix, encoder, share);
  });
  data::Encoded all = exchange(session.communicator(), own);
  session.communicator().together([&] {
    if (all.counts.broken > config.max_broken_rows)
      throw data::too_many_broken(all.counts, config.max_broken_rows);
  });
  return all;
}

void report_counts(const data::Encoded& set, const std::string& what, bool prints) {
  if (!prints) return;
  const data::EncodingCounts& c = set.counts;
  log::info(what + ": " + with_commas(c.documents) + " documents of " + with_commas(c.rows) + " rows, " +
            with_commas(c.tokens) + " tokens, " + with_commas(c.trained) + " of them trained");
  const auto complain = [&what](std::int64_t count, const std::string& sentence) {
    if (count > 0) log::warn(what + ": " + with_commas(count) + " rows " + sentence);
  };
  complain(c.broken, "were left out because they cannot be read");
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
                        " not usable, " + with_commas(set.counts.broken) + " not readable, " +
                        with_commas(set.counts.dropped + set.counts.unlabelled) + " without trained tokens",
               .where = set.counts.reasons.empty() ? "" : set.counts.reasons.front(),
               .fix = "check the columns of the data set, the template and cutoff_len",
               .code = ExitCode::usage});
}

// Texts in blocks, as LLaMA-Factory's pre-training cuts them.
bool cuts_blocks(const config::Config& config) {
  return config.packing && config.stage == "pt" && config.packing_strategy == "llamafactory";
}

data::Items items_of(const data::Encoded& set, const config::Config& config) {
  if (!config.packing || cuts_blocks(config)) return data::one_each(set);
  if (config.packing_strategy == "best_fit") return data::pack_best_fit(set, config.cutoff_len);
  return data::pack_knapsack(set, {.capacity = config.cutoff_len - 1,
                                   .batch_rows = config.preprocessing_batch_size,
                                   .shared_context = !config.neat_packing});
}

// Blocks in place of texts, where the configuration asks for them.
data::Encoded finished(data::Encoded set, const config::Config& config, const data::Encoder& encoder) {
  if (!cuts_blocks(config)) return set;
  return data::cut_blocks(set, {.length = config.cutoff_len,
                                .batch_rows = config.preprocessing_batch_size,
                                .first_token = encoder.text_bos_id()});
}

}  // namespace

Corpus build_corpus(Session& session, const config::Config& config, const data::Encoder& encoder) {
  Corpus corpus;
  data::RowMix mix, held;
  session.communicator().together([&] {
    data::DataOptions options{.dataset = config.dataset,
                              .dataset_dir = config.dataset_dir,
                              .max_samples = config.max_samples,
                              .seed = config.order_seed()};
    mix = data::RowMix(
        data::open_datasets(options),
        {.strategy = config.mix_strategy, .weights = weights_of(config), .seed = config.order_seed()});
    if (!config.eval_dataset.empty()) {
      options.dataset = config.eval_dataset;
      options.key = "eval_dataset";
      held = data::RowMix(data::open_datasets(options), {});
    }
  });
  for (const auto& source : mix.sources()) corpus.names.push_back(source.name);
  data::Encoded all = encode_together(session, config, mix, encoder);
  report_counts(all, "training data", session.prints());
  session.communicator().together([&] { require_documents(all, "the data set"); });
  if (config.val_size > 0 && held.size() == 0) {
    std::vector<std::int64_t> distinct = mix.distinct_rows();
    const std::int64_t rows = distinct.empty() ? mix.size() : 1 + *std::ranges::max_element(distinct);
    const auto count = static_cast<std::int64_t>(
        config.val_size < 1 ? std::ceil(config.val_size * static_cast<double>(rows)) : config.val_size);
    session.communicator().together([&] {
      if (count < rows) return;
      throw Error({.what = "val_size leaves nothing to train on",
                   .expected = "fewer than the " + with_commas(rows) + " rows of the data set",
                   .found = with_commas(count),
                   .where = "configuration key 'val_size'",
                   .code = ExitCode::usage});
    });
    std::tie(corpus.training, corpus.evaluation) = data::hold_out(
        all, {.rows = rows, .count = count, .seed = config.order_seed(), .distinct = std::move(distinct)});
    session.communicator().together(
        [&] { require_documents(corpus.training, "the data set without its held-out rows"); });
  } else {
    corpus.training = std::move(all);
    if (held.size() > 0) {
      corpus.evaluation = encode_together(session, config, held, encoder);
      report_counts(corpus.evaluation, "evaluation data", session.prints());
      session.communicator().together(
          [&] { require_documents(corpus.evaluation, "the evaluation data set"); });
    }
  }
  corpus.training = finished(std::move(corpus.training), config, encoder);
  corpus.evaluation = finished(std::move(corpus.evaluation), config, encoder);
  session.communicator().together(
      [&] { require_documents(corpus.training, "the training data cut into blocks of cutoff_len"); });
  corpus.training_items = items_of(corpus.training, config);
  corpus.evaluation_items = items_of(corpus.evaluation, config);
  if (config.packing && session.prints()) {
    std::int64_t tokens = 0;
    for (const std::int64_t d : corpus.training_items.documents) tokens += corpus.training.length(d);
    const double fill = 100.0 * static_cast<double>(tokens) /
                        static_cast<double>(config.cutoff_len * corpus.training_items.size());
    log::info("packing: " + with_commas(static_cast<std::int64_t>(corpus.training_items.documents.size())) +
              " documents in " + with_commas(corpus.training_items.size()) + " sequences, " +
              std::to_string(fill).substr(0, 5) + " % full");
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
