#include "octet/feed/feed.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/feed/stream.h"
#include "octet/setup/setup.h"

namespace octet::feed {
namespace {

// Samples of which an epoch has a whole number, for SampleOrder and StreamOptions. With strict bits no rank
// counts, so only micro-batches are whole.
std::int64_t whole_groups_of(const config::Config& config, const config::Batch& batch) {
  if (!config.dataloader_drop_last) return 1;
  return config.deterministic == "strict" ? batch.micro : batch.micro * batch.world;
}

class IndexedFeed final : public Feed {
 public:
  IndexedFeed(const config::Config& config, const config::Batch& batch, const Corpus& corpus)
      : corpus_(corpus),
        batch_(batch),
        order_{.items = corpus.training_items.size(),
               .global_batch = batch.global,
               .seed = config.order_seed(),
               .shuffle = !config.disable_shuffling,
               .whole_groups_of = whole_groups_of(config, batch)} {
    if (order_.items_per_epoch() == 0) throw no_whole_group(order_.items, order_.whole_groups_of);
  }

  Shape shape() const override {
    const data::Items& items = corpus_.training_items;
    return {.tokens = batch_.micro * items.longest(corpus_.training),
            .longest = longest_context(corpus_.training, items),
            .documents = batch_.micro * items.most_documents()};
  }
  std::int64_t examples() const override { return corpus_.training_items.size(); }
  std::int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }
  // Counted in micro-batches of all ranks, as Hugging Face's Trainer counts: an epoch's last step may have
  // fewer of them.
  double epochs(std::int64_t steps) const override {
    const std::int64_t each = batch_.micro * batch_.world;
    const std::int64_t micro_batches = (order_.items_per_epoch() + each - 1) / each;
    const std::int64_t done = steps % order_.steps_per_epoch() * batch_.accumulation;
    return static_cast<double>(steps / order_.steps_per_epoch()) +
           static_cast<double>(done) / static_cast<double>(micro_batches);
  }
  double mean_context() const override {
    return feed::mean_context(corpus_.training, corpus_.training_items);
  }
  const data::Encoded& shown() const override { return corpus_.training; }
  std::string fingerprint() const override { return corpus_.fingerprint; }

  void start(const Deal& deal, std::int64_t steps, const Json&) override {
    given_ = steps * batch_.accumulation;
    loader_ = std::make_unique<Loader>(corpus_.training, corpus_.training_items, order_, deal, steps);
  }
  HostBatch next(bool, double* waited) override {
    ++given_;
    return loader_->next(waited);
  }
  // The order is known, so nobody has to be asked.
  Step step() const override {
    Step out;
    const std::int64_t done = (given_ + batch_.accumulation - 1) / batch_.accumulation;
    out.epoch = epochs(done);
    out.ends_epoch = done > 0 && done % order_.steps_per_epoch() == 0;
    for (std::int64_t place = 0; done > 0 && place < order_.global_batch; ++place) {
      const std::int64_t item = order_.item(done - 1, place);
      if (item < 0) continue;
      ++out.samples;
      out.tokens += corpus_.training_items.tokens(corpus_.training, item);
    }
    return out;
  }
  Json position() const override { return nullptr; }

 private:
  const Corpus& corpus_;
  config::Batch batch_;
  SampleOrder order_;
  std::int64_t given_ = 0;  ///< micro-batches, those before start() included
  std::unique_ptr<Loader> loader_;
};

StreamOptions stream_options(const config::Config& config, const config::Batch& batch,
                             const data::Encoder& encoder, const Corpus& corpus) {
  StreamOptions options;
  options.window_rows = config.buffer_size;
  if (config.packing && config.packing_strategy == "llamafactory") {
    // Its batches of rows are packed by themselves, so a window holds whole ones.
    const std::int64_t batch_rows = config.preprocessing_batch_size;
    options.window_rows = std::max<std::int64_t>(1, config.buffer_size / batch_rows) * batch_rows;
  }
  options.global_batch = batch.global;
  options.seed = config.order_seed();
  options.shuffle = !config.disable_shuffling;
  options.whole_groups_of = whole_groups_of(config, batch);
  options.threads = setup::tokenising_threads(config);
  options.max_broken = config.max_broken_rows;
  options.left_out = corpus.held_out;
  options.layout = [&config, &encoder](data::Encoded& set) { return lay_out(set, config, encoder); };
  return options;
}

class StreamFeed final : public Feed {
 public:
  StreamFeed(runtime::Session& session, const config::Config& config, const config::Batch& batch,
             const data::Encoder& encoder, const Corpus& corpus)
      : session_(session),
        config_(config),
        corpus_(corpus),
        batch_(batch),
        stream_(*corpus.rows, encoder, stream_options(config, batch, encoder, corpus)) {
    session.job().together([&] { first_ = stream_.read(0, 0); });
    if (!session.prints()) return;
    log::info("streaming: " + with_commas(corpus.rows->size()) + " rows in " +
              with_commas(stream_.windows()) + " windows of " + with_commas(stream_.options().window_rows) +
              " (buffer_size)");
    report_counts(first_.set, "the first window");
    report_packing(first_.set, first_.items, config);
  }

  // At the worst: what will come is not known.
  Shape shape() const override {
    Shape out{.tokens = batch_.micro * config_.cutoff_len,
              .longest = config_.cutoff_len,
              .documents = batch_.micro};
    // A document that trains anything has two tokens.
    if (config_.packing && !first_.items.shared_context)
      out.documents *= std::max<std::int64_t>(1, config_.cutoff_len / 2);
    return out;
  }
  std::int64_t examples() const override { return corpus_.rows->size(); }
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

  void start(const Deal& deal, std::int64_t steps, const Json& position) override {
    const std::string where = "the checkpoint's place in the data";
    StreamPosition at;
    if (steps > 0 && !position.is_object()) {
      throw Error({.what = "the checkpoint does not say where its run stood in the stream",
                   .expected = "a checkpoint of a run with streaming: true",
                   .where = "configuration key 'streaming'",
                   .fix = "go on with streaming: false, or start afresh with overwrite_output_dir=true",
                   .code = ExitCode::usage});
    }
    if (steps > 0) {
      const auto number = [&](const char* key, std::int64_t most) {
        return json_int(position, key, -1, 0, most, where);
      };
      at = {.epoch = number("epoch", INT64_C(1) << 40),
            .window = number("window", INT64_C(1) << 40),
            .item = number("item", INT64_C(1) << 40)};
      const std::int64_t rows = number("window_rows", INT64_C(1) << 40);
      if (at.window >= stream_.windows() || rows != stream_.options().window_rows) {
        throw Error({.what = "the checkpoint's place in the stream is not one of this stream",
                     .expected = "the same data and buffer_size as before",
                     .found = "window " + std::to_string(at.window + 1) + " of " +
                              std::to_string(stream_.windows()) + ", windows of " + std::to_string(rows) +
                              " rows then and of " + std::to_string(stream_.options().window_rows) + " now",
                     .where = "configuration keys 'dataset' and 'buffer_size'",
                     .fix = "go on with the same data and buffer_size",
                     .code = ExitCode::usage});
      }
    }
    place_ = at;
    loader_ = std::make_unique<StreamLoader>(stream_, deal, at);
  }
  HostBatch next(bool first_of_step, double* waited) override {
    HostBatch batch;
    const auto take = [&] { batch = loader_->next(waited); };
    // Rows that cannot be read show between two steps.
    if (first_of_step) {
      session_.job().together(take);
    } else {
      take();
    }
    step_ = loader_->step();
    place_ = step_.behind;
    return batch;
  }
  Step step() const override {
    return {.samples = step_.items,
            .tokens = step_.tokens,
            .epoch = step_.epochs,
            .ends_epoch = step_.ends_epoch};
  }
  Json position() const override {
    return Json{{"epoch", place_.epoch},
                {"window", place_.window},
                {"item", place_.item},
                {"window_rows", stream_.options().window_rows}};
  }

 private:
  runtime::Session& session_;
  const config::Config& config_;
  const Corpus& corpus_;
  config::Batch batch_;
  Stream stream_;
  StreamWindow first_;
  StreamPosition place_;
  StreamStep step_;
  std::unique_ptr<StreamLoader> loader_;
};

}  // namespace

std::unique_ptr<Feed> make_feed(runtime::Session& session, const config::Config& config,
                                const config::Batch& batch, const data::Encoder& encoder,
                                const Corpus& corpus) {
  if (corpus.rows) return std::make_unique<StreamFeed>(session, config, batch, encoder, corpus);
  std::unique_ptr<Feed> feed;
  session.job().together([&] { feed = std::make_unique<IndexedFeed>(config, batch, corpus); });
  return feed;
}

}  // namespace octet::feed
