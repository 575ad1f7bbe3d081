// The objects that a run shares, without an engine.
#pragma once

#include <string>
#include <utility>

#include "../src/train/run_context.h"
#include "octet/base/json.h"
#include "octet/checkpoint/save.h"
#include "octet/config/config.h"
#include "support/temporary_folder.h"

namespace octet::train::run_objects {

/// A feed without data. Its epochs have `per_epoch` steps.
class EmptyFeed : public feed::Feed {
 public:
  explicit EmptyFeed(std::int64_t per_epoch) : per_epoch_(per_epoch) {}

  void go_to(std::int64_t step) { step_ = step; }
  Shape shape() const override { return {}; }
  std::int64_t examples() const override { return 0; }
  std::optional<std::int64_t> items_of_epoch() const override { return std::nullopt; }
  std::int64_t steps_per_epoch() const override { return per_epoch_; }
  double epochs(std::int64_t steps) const override {
    return static_cast<double>(steps) / static_cast<double>(per_epoch_);
  }
  double mean_context() const override { return 0; }
  const data::Encoded& shown() const override { return shown_; }
  std::string fingerprint() const override { return ""; }
  void go_on(std::int64_t steps, const Json&, const std::string&) override { step_ = steps; }
  std::int64_t steps_until_end_of(std::int64_t steps) const override { return steps; }
  void start(const feed::Deal&) override {}
  runtime::HostBatch next(bool, double*) override { return {}; }
  bool failed() const override { return false; }
  void require_data() override {}
  Step step() const override { return {.epoch = epochs(step_), .ends_epoch = step_ % per_epoch_ == 0}; }
  Json position() const override { return {}; }

 private:
  std::int64_t per_epoch_, step_ = 0;
  data::Encoded shown_;
};

/// A run on one CPU, without a model, data and an engine.
class BareRun {
 public:
  static constexpr std::int64_t kPerEpoch = 4, kTotal = 10;

  explicit BareRun(config::Config config = {}) : run_(session_, resolved(std::move(config))) {
    run_.total_steps = kTotal;
    auto own = std::make_unique<EmptyFeed>(kPerEpoch);
    feed_ = own.get();
    parts_.feed = std::move(own);
    parts_.fresh = true;
  }

  RunContext& run() { return run_; }
  RunParts& parts() { return parts_; }
  const test::TemporaryFolder& folder() const { return folder_; }
  void go_to(std::int64_t step) {
    run_.step = step;
    feed_->go_to(step);
  }
  /// Saves a checkpoint without tensors in the output folder.
  std::string save_checkpoint(std::int64_t step, const Json& state) {
    return checkpoint::save(run_.job, run_.config.output_dir, {.step = step, .state = state});
  }

 private:
  config::Resolved resolved(config::Config config) const {
    config.output_dir = folder_.path();
    return {.config = std::move(config)};
  }

  test::TemporaryFolder folder_{"bare_run"};
  runtime::Session session_{DeviceWish::cpu};
  RunContext run_;
  RunParts parts_;
  EmptyFeed* feed_ = nullptr;
};

}  // namespace octet::train::run_objects
