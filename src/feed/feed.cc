#include "octet/feed/feed.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/feed/stream.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "row_report.h"

namespace octet::feed {
namespace {

// Returns the number of samples in a group (SampleOrder, StreamOptions). With dataloader_drop_last, an epoch
// trains whole groups only. Strict results must not depend on the number of ranks, so a group is then one
// micro-batch. Returns 1 without dataloader_drop_last.
std::int64_t whole_groups_of(const config::DatasetKeys& config, bool strict, const config::Batch& batch) {
  if (!config.dataloader_drop_last) return 1;
  return strict ? batch.micro : batch.micro * batch.world;
}

// Runs `work` on all ranks. Throws DataError on all of them if it throws an Error on one.
void together_with_data(comm::Job& job, const std::function<void()>& work) {
  try {
    job.together(work);
  } catch (const Error& e) {
    throw DataError(e.problem());
  }
}

std::string hash_of(const LongArray<std::int64_t>& numbers) {
  const auto span = numbers.span();
  return hash128_hex({reinterpret_cast<const char*>(span.data()), span.size_bytes()});
}

std::int64_t place_number(const Json& place, const char* key, const std::string& where) {
  if (!place.contains(key) || place.at(key).is_null()) {
    throw Error({.what = "the checkpoint's place in the data is incomplete",
                 .expected = std::string("a number '") + key + "'",
                 .where = where + ", the place in the data",
                 .fix = "resume from another checkpoint",
                 .code = ExitCode::usage});
  }
  return json_int(place, key, 0, 0, INT64_C(1) << 40, where + ", the place in the data");
}

// Returns the data position in the state of a checkpoint; null if there is none. Throws Error if the
// checkpoint has streaming: true and this run does not, or the reverse.
Json place_of(const Json& state, const std::string& kind, const std::string& where) {
  Json place = state.value("place", Json());
  if (place.is_null()) return place;
  const std::string found = place.is_object() ? json_string(place, "kind", "", where) : "";
  if (found == kind) return place;
  throw Error({.what = "the checkpoint's place in the data does not fit this run",
               .expected = kind == "rows" ? "a checkpoint of a run with streaming: true"
                                          : "a checkpoint of a run with streaming: false",
               .where = where + "; configuration key 'streaming'",
               .fix = std::string("resume with streaming: ") + (kind == "rows" ? "false" : "true") +
                      ", or start a new run with overwrite_output_dir=true",
               .code = ExitCode::usage});
}

// Throws Error if the same data now have another order, because a position within an epoch is then wrong. If
// the data changed, does nothing: the run reports this change.
void require_same_order(const Json& state, const Json& place, const std::string& order,
                        const std::string& fingerprint, const std::string& where) {
  if (json_string(place, "order", "", where) == order) return;
  if (json_string(state, "data_fingerprint", "", where) != fingerprint) return;
  throw Error({.what = "the checkpoint is within an epoch, and its samples would now have another order: "
                       "some would be trained twice and others never",
               .expected = "the seed, shuffling, packing and window of the run that wrote it",
               .where = where + "; configuration keys 'seed', 'data_seed', 'disable_shuffling', 'packing', "
                                "'packing_strategy', 'cutoff_len', 'buffer_size'",
               .fix = "resume with the earlier values, or start a new run from the exported weights",
               .code = ExitCode::usage});
}

class IndexedFeed final : public Feed {
 public:
  IndexedFeed(runtime::Session& session, const config::DataKeys& config, bool strict,
              const config::Batch& batch, const Corpus& corpus)
      : session_(session),
        corpus_(corpus),
        batch_(batch),
        order_{.items = corpus.training_items.size(),
               .global_batch = batch.global,
               .seed = config.order_seed(),
               .shuffle = !config.disable_shuffling,
               .whole_groups_of = whole_groups_of(config, strict, batch)} {
    if (order_.items_per_epoch() == 0) throw no_whole_group(order_.items, order_.whole_groups_of);
  }

  Shape shape() const override {
    const data::Items& items = corpus_.training_items;
    return {.tokens = batch_.micro * most_tokens(corpus_.training, items),
            .longest = longest_context(corpus_.training, items),
            .documents = batch_.micro * items.most_documents()};
  }
  std::int64_t examples() const override { return corpus_.training_items.size(); }
  std::optional<std::int64_t> items_of_epoch() const override { return examples(); }
  std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }
  // Counts micro-batches of all ranks, like Hugging Face's Trainer: the last step of an epoch may have fewer
  // of them.
  double epochs(std::int64_t steps) const override {
    const std::int64_t each = batch_.micro * batch_.world;
    const std::int64_t micro_batches = (order_.items_per_epoch() + each - 1) / each;
    const SamplePlace at = order_.place(steps);
    return static_cast<double>(at.epoch) +
           static_cast<double>(at.item) / static_cast<double>(each) / static_cast<double>(micro_batches);
  }
  double mean_context() const override {
    return feed::mean_context(corpus_.training, corpus_.training_items);
  }
  const data::Encoded& shown() const override { return corpus_.training; }
  std::string fingerprint() const override { return corpus_.fingerprint; }

  void go_on(std::int64_t steps, const Json& state, const std::string& where) override {
    const Json place = place_of(state, "samples", where);
    if (place.is_null()) {
      // Older checkpoints have no position. It follows from the steps and their batch size, which was
      // constant.
      SampleOrder before = order_;
      before.global_batch = json_int(state, "global_batch", order_.global_batch, 1, INT64_C(1) << 40, where);
      order_.go_on(steps, before.place(steps));
    } else {
      const SamplePlace at{.epoch = place_number(place, "epoch", where),
                           .item = place_number(place, "item", where)};
      if (at.item > 0) require_same_order(state, place, order_hash(), fingerprint(), where);
      order_.go_on(steps, at);
    }
    given_ = steps * batch_.passes;
  }
  std::int64_t steps_until_end_of(std::int64_t steps) const override {
    return order_.steps_until_end_of(steps);
  }
  void start(const Deal& deal) override {
    loader_ =
        std::make_unique<Loader>(corpus_.training, corpus_.training_items, order_, deal, order_.first_step);
  }
  // Ranks do not synchronise here: failed() finds failures between steps.
  runtime::HostBatch next(bool first_of_step, double* waited) override {
    if (first_of_step && batch_.world == 1 && failed()) require_data();
    runtime::HostBatch batch = loader_->next(waited);
    ++given_;
    return batch;
  }
  bool failed() const override { return loader_ && loader_->failure(); }
  void require_data() override {
    together_with_data(session_.job(), [this] {
      if (const auto failure = loader_->failure()) std::rethrow_exception(failure);
    });
  }
  // The order is known on every rank, so no communication is needed.
  Step step() const override {
    Step out;
    const std::int64_t done = done_steps();
    out.epoch = epochs(done);
    out.ends_epoch = done > 0 && order_.place(done).item == 0;
    for (std::int64_t nth = 0; done > order_.first_step && nth < order_.global_batch; ++nth) {
      const std::int64_t item = order_.item(done - 1, nth);
      if (item < 0) break;  // the epoch ends here
      ++out.samples;
      out.tokens += corpus_.training_items.tokens(corpus_.training, item);
    }
    return out;
  }
  Json position() const override {
    const SamplePlace at = order_.place(done_steps());
    return Json{{"kind", "samples"}, {"epoch", at.epoch}, {"item", at.item}, {"order", order_hash()}};
  }

 private:
  std::int64_t done_steps() const { return (given_ + batch_.passes - 1) / batch_.passes; }
  // Returns a hash of everything that determines the order of samples in an epoch.
  std::string order_hash() const {
    if (order_hash_.empty()) {
      const data::Items& items = corpus_.training_items;
      order_hash_ = hash128_hex(hash_of(items.begins) + hash_of(items.documents) +
                                std::to_string(order_.seed) + (order_.shuffle ? " shuffled" : " in order"));
    }
    return order_hash_;
  }

  runtime::Session& session_;
  mutable std::string order_hash_;  ///< computed on demand
  const Corpus& corpus_;
  config::Batch batch_;
  SampleOrder order_;
  std::int64_t given_ = 0;  ///< micro-batches returned so far, including the steps before the checkpoint
  std::unique_ptr<Loader> loader_;
};

StreamOptions stream_options(const config::DataKeys& config, bool strict, const config::Batch& batch,
                             const data::Encoder& encoder, const Corpus& corpus) {
  StreamOptions options;
  options.window_rows = config.buffer_size;
  if (const setup::Packing packing = setup::packing_of(config);
      packing == setup::Packing::knapsack || packing == setup::Packing::blocks) {
    // Each batch of rows is packed separately, so a window has whole batches.
    const std::int64_t batch_rows = config.preprocessing_batch_size;
    options.window_rows = std::max<std::int64_t>(1, config.buffer_size / batch_rows) * batch_rows;
  }
  options.global_batch = batch.global;
  options.seed = config.order_seed();
  options.shuffle = !config.disable_shuffling;
  options.whole_groups_of = whole_groups_of(config, strict, batch);
  options.threads = setup::tokenising_threads(config);
  options.max_broken = config.max_broken_rows;
  options.refuse_longer = setup::refuses_long_rows(config) ? config.cutoff_len : 0;
  options.left_out = corpus.held_out;
  options.layout = [&config, &encoder](data::Encoded& set) { return lay_out(set, config, encoder); };
  return options;
}

class StreamFeed final : public Feed {
 public:
  StreamFeed(runtime::Session& session, const config::DataKeys& config, bool strict,
             const config::Batch& batch, const data::Encoder& encoder, const Corpus& corpus)
      : session_(session),
        config_(config),
        corpus_(corpus),
        batch_(batch),
        stream_(*corpus.rows, encoder,
                counted(session, stream_options(config, strict, batch, encoder, corpus))) {
    session.job().together([&] { first_ = stream_.read(0, 0); });
    if (!session.prints()) return;
    log::debug("streaming: " + with_commas(corpus.rows->size()) + " rows in " +
               with_commas(stream_.windows()) + " windows of " + with_commas(stream_.options().window_rows) +
               " (buffer_size)");
    report_counts(first_.set, "the first window");
    report_.add(stream_.row_window(0, 0), first_.set.counts);
    report_packing(first_.set, first_.items, config);
  }

  // Returns the worst case, because the data are not known in advance.
  Shape shape() const override {
    Shape out{.tokens = batch_.micro * config_.cutoff_len,
              .longest = config_.cutoff_len,
              .documents = batch_.micro};
    // A document with a trained token has at least two tokens.
    if (config_.packing && !first_.items.shared_context)
      out.documents *= std::max<std::int64_t>(1, config_.cutoff_len / 2);
    return out;
  }
  std::int64_t examples() const override { return corpus_.rows->size(); }
  // Only the first window has been read. Other windows may have another number of items per row.
  std::optional<std::int64_t> items_of_epoch() const override {
    if (stream_.windows() > 1) return std::nullopt;
    return first_.items.size();
  }
  std::int64_t steps_per_epoch() const override { return 0; }
  double epochs(std::int64_t steps) const override {
    const auto rows = static_cast<double>(std::min(corpus_.rows->size(), stream_.options().window_rows));
    const double items_of_row = static_cast<double>(std::max<std::int64_t>(1, first_.items.size())) / rows;
    return static_cast<double>(steps) * static_cast<double>(batch_.global) /
           (items_of_row * static_cast<double>(corpus_.rows->size()));
  }
  double mean_context() const override { return feed::mean_context(first_.set, first_.items); }
  const data::Encoded& shown() const override { return first_.set; }
  std::string fingerprint() const override { return corpus_.fingerprint; }

  void go_on(std::int64_t, const Json& state, const std::string& where) override {
    const Json place = place_of(state, "rows", where);
    if (place.is_null()) {
      throw Error({.what = "the checkpoint has no place in the stream",
                   .expected = "a checkpoint of a run with streaming: true",
                   .where = where + "; configuration key 'streaming'",
                   .fix = "resume with streaming: false, or start a new run with overwrite_output_dir=true",
                   .code = ExitCode::usage});
    }
    place_ = {.epoch = place_number(place, "epoch", where),
              .window = place_number(place, "window", where),
              .item = place_number(place, "item", where)};
    const std::int64_t rows = place_number(place, "window_rows", where);
    if (place_.window >= stream_.windows() || rows != stream_.options().window_rows) {
      throw Error({.what = "the checkpoint's place in the stream does not exist in this stream",
                   .expected = "the same data and buffer_size as before",
                   .found = "window " + std::to_string(place_.window + 1) + " of " +
                            std::to_string(stream_.windows()) + ", windows of " + std::to_string(rows) +
                            " rows then and of " + std::to_string(stream_.options().window_rows) + " now",
                   .where = where + "; configuration keys 'dataset' and 'buffer_size'",
                   .fix = "resume with the same data and buffer_size",
                   .code = ExitCode::usage});
    }
    if (place_.window > 0 || place_.item > 0)
      require_same_order(state, place, order_hash(), fingerprint(), where);
  }
  // A run on a stream always has max_steps, which does not depend on epochs.
  std::int64_t steps_until_end_of(std::int64_t steps) const override { return steps; }
  void start(const Deal& deal) override { loader_ = std::make_unique<StreamLoader>(stream_, deal, place_); }
  runtime::HostBatch next(bool first_of_step, double* waited) override {
    runtime::HostBatch batch;
    const auto take = [&] { batch = loader_->next(waited); };
    // Errors of unreadable rows are thrown between two steps, on all ranks.
    if (first_of_step) {
      together_with_data(session_.job(), take);
    } else {
      take();
    }
    step_ = loader_->step();
    place_ = step_.behind;
    return batch;
  }
  // next() finds failures on all ranks before each step.
  bool failed() const override { return false; }
  void require_data() override {}
  void report_end() const override {
    if (session_.prints()) report_.end();
  }
  Step step() const override {
    return {.samples = step_.items,
            .tokens = step_.tokens,
            .epoch = step_.epochs,
            .ends_epoch = step_.ends_epoch};
  }
  Json position() const override {
    return Json{{"kind", "rows"},
                {"epoch", place_.epoch},
                {"window", place_.window},
                {"item", place_.item},
                {"window_rows", stream_.options().window_rows},
                {"order", order_hash()}};
  }

 private:
  // The rank that prints reports every window.
  StreamOptions counted(const runtime::Session& session, StreamOptions options) {
    if (session.prints()) {
      options.counted = [this](std::int64_t window, const data::EncodingCounts& counts) {
        report_.add(window, counts);
      };
    }
    return options;
  }

  // Returns a hash of everything that determines the windows and the order of samples in them.
  std::string order_hash() const {
    const StreamOptions& options = stream_.options();
    std::string words = std::to_string(options.seed) + (options.shuffle ? " shuffled" : " in order");
    words += " " + std::to_string(options.window_rows) + " " + std::to_string(config_.cutoff_len);
    if (config_.packing) {
      words += " packed " + config_.packing_strategy + (config_.neat_packing ? " neat" : "") + " " +
               std::to_string(config_.preprocessing_batch_size);
    }
    return hash128_hex(words);
  }

  runtime::Session& session_;
  const config::DataKeys& config_;
  const Corpus& corpus_;
  config::Batch batch_;
  WindowReport report_;  ///< the stream's loader uses it
  Stream stream_;
  StreamWindow first_;
  StreamPosition place_;
  StreamStep step_;
  std::unique_ptr<StreamLoader> loader_;
};

}  // namespace

std::unique_ptr<Feed> make_feed(runtime::Session& session, const config::DataKeys& config, bool strict,
                                const config::Batch& batch, const data::Encoder& encoder,
                                const Corpus& corpus) {
  if (corpus.rows) return std::make_unique<StreamFeed>(session, config, strict, batch, encoder, corpus);
  std::unique_ptr<Feed> feed;
  session.job().together(
      [&] { feed = std::make_unique<IndexedFeed>(session, config, strict, batch, corpus); });
  return feed;
}

}  // namespace octet::feed
