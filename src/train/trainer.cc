#include "octet/train/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>

#include "cast_log.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/save.h"
#include "octet/report/number.h"
#include "octet/runtime/same_model.h"
#include "octet/runtime/signals.h"
#include "octet/train/final_model.h"
#include "run.h"
#include "start.h"

namespace octet::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double mean_loss(const store::StepResult& result) {
  return result.loss_sum / static_cast<double>(std::max<std::int64_t>(1, result.label_tokens));
}

bool was_skipped(const store::StepResult& result) {
  return result.skipped && result.label_tokens > 0;
}

}  // namespace

void Run::guard(const store::StepResult& result) {
  const bool finite = !was_skipped(result) && std::isfinite(result.loss_sum);
  not_finite_ = finite ? 0 : not_finite_ + 1;
  if (finite) return;
  const std::string figures = "loss " + report::python_number(mean_loss(result), 6) + ", gradient norm " +
                              report::python_number(result.grad_norm, 6);
  if (session_.prints()) {
    log::warn("step " + std::to_string(step_) +
              (result.skipped ? ": the gradient is not finite; the step was skipped"
                              : ": the loss is not finite; its gradient is, and was used") +
              " (" + figures + ")");
  }
  if (not_finite_ < kMostNotFinite) return;
  job_.together([&] {
    throw Error({.what = "the loss or the gradient was not finite in " + std::to_string(kMostNotFinite) +
                         " steps in a row",
                 .found = figures,
                 .where = "step " + std::to_string(step_),
                 .fix = "lower learning_rate, or go back to an earlier checkpoint"});
  });
}

bool Run::logs_at(std::int64_t step) const {
  return report::is_logged(step, config::interval_steps(config_.logging_steps, total_steps_),
                           config_.logging_first_step, total_steps_);
}

void Run::report_step(const store::StepResult& result, const Waits& waits) {
  const auto traffic = session_.take_traffic();
  own_loss_.add(engine_->own_loss());
  report::StepFacts facts;
  if (logs_at(step_)) {
    const AllFacts all =
        exchange_facts(job_, {.loss = std::exchange(own_loss_, {}).mean(),
                              .reserved_bytes = static_cast<std::int64_t>(engine_->arena().bytes()),
                              .used_bytes = memory_in_use(session_.device())});
    facts.rank_losses = all.losses;
    facts.memory_bytes = all.reserved_bytes;
    facts.memory_peak_bytes = all.used_bytes;
    if (watches_casts()) {
      CastFields fields = cast_fields(casts_of_all(job_, engine_->cast_rows()));
      facts.fp8 = std::move(fields.worst);
      if (setup::cast_log(config_) == setup::CastLog::layers) facts.fp8_layers = std::move(fields.layers);
    }
  }
  if (!reporter_) return;
  facts.step = step_;
  const feed::Feed::Step step = feed_->step();
  facts.epoch = step.epoch;
  facts.loss = mean_loss(result);
  facts.grad_norm = result.grad_norm;
  facts.learning_rate = result.learning_rate;
  facts.seconds = waits.seconds;
  facts.tokens = step.tokens;
  facts.samples = step.samples;
  facts.label_tokens = result.label_tokens;
  facts.skipped = was_skipped(result);
  facts.data_seconds = waits.data_seconds;
  facts.comm_seconds = waits.messages.under_way;
  facts.comm_exposed_seconds = waits.messages.exposed;
  if (job_.size() > 1) {
    for (const auto& kind : traffic) {
      if (kind.calls > 0) facts.comm_kinds.push_back({kind.kind, kind.seconds, kind.bytes_sent});
    }
  }
  reporter_->step(facts);
}

store::StepResult Run::train_step() {
  const auto start = Clock::now();
  Waits waits;
  session_.take_traffic();  // of evaluations and checkpoints: the step's own is to be told
  engine_->watch_casts(
      {.next = watches_casts() && logs_at(step_ + 1), .after = watches_casts() && logs_at(step_ + 2)});
  StepWatch watch(session_.data(), engine_->compute());
  const store::StepResult result = loop_->take([&](bool first) {
    runtime::HostBatch batch = feed_->next(first, &waits.data_seconds);
    if (samples_) samples_->add(batch);
    return batch;
  });
  step_ = loop_->done();
  samples_seen_ += feed_->step().samples;
  if (samples_) samples_->end_step(step_);
  waits.seconds = seconds_since(start);
  waits.messages = watch.take();
  report_step(result, waits);
  engine_->instance().check_products();
  guard(result);
  return result;
}

void Run::evaluate() {
  const auto start = Clock::now();
  const std::int64_t micro = config_.per_device_eval_batch_size;
  const std::int64_t items = corpus_.evaluation_items.size();
  const std::int64_t each = micro * job_.size();
  std::vector<double> losses;  // of each of this rank's batches
  std::int64_t labels = 0;
  for (std::int64_t first = 0; first < items; first += each) {
    std::vector<std::int64_t> which;
    for (std::int64_t i = 0; i < micro; ++i) {
      const std::int64_t item = first + job_.rank() * micro + i;
      which.push_back(item < items ? item : -1);
    }
    engine_->evaluate(feed::make_batch(corpus_.evaluation, corpus_.evaluation_items, which),
                      &losses.emplace_back(0.0), &labels);
  }
  const auto batches = static_cast<std::int64_t>(losses.size());
  const auto of_ranks = job_.all_gather_bytes(
      std::string(reinterpret_cast<const char*>(losses.data()), losses.size() * sizeof(double)));
  // In the order of the batches, so that the figure is the same on every rank and on any number of them.
  double total = 0;
  for (std::size_t batch = 0; batch < losses.size(); ++batch) {
    for (const std::string& bytes : of_ranks) {
      double part = 0;
      std::memcpy(&part, bytes.data() + batch * sizeof part, sizeof part);
      total += part;
    }
  }
  labels = job_.all_sum(labels);
  if (!reporter_) return;
  reporter_->evaluation({.step = step_,
                         .epoch = feed_->step().epoch,
                         .loss = total / static_cast<double>(std::max<std::int64_t>(1, labels)),
                         .seconds = seconds_since(start),
                         .samples = items,
                         .batches = batches,
                         .perplexity = setup::is_pretraining(config_)});
}

void Run::save() {
  if (saved_step_ == step_) return;
  const auto start = Clock::now();
  checkpoint::CheckpointContents contents;
  contents.step = step_;
  contents.zero_stage = static_cast<int>(config_.zero_stage);
  contents.slices = state_slices(*engine_);
  contents.config_yaml = resolved_.to_yaml();
  contents.state = Json{{"step", step_},
                        {"total_steps", total_steps_},
                        {"epoch", feed_->step().epoch},
                        {"samples_seen", samples_seen_},
                        {"seed", config_.seed},
                        {"order_seed", config_.order_seed()},
                        {"global_batch", batch_.global},
                        {"items", feed_->examples()},
                        {"place", feed_->position()},
                        {"data_fingerprint", feed_->fingerprint()},
                        {"model", runtime::model_state(architecture_, encoder_->tokenizer())},
                        {"resume_hash", config::resume_hash(config_)},
                        {"learning_rate", schedule_->learning_rate(step_)},
                        {"lr_scheduler_type", config_.lr_scheduler_type},
                        {"not_finite_in_a_row", not_finite_}};
  if (reporter_) contents.state["trainer_state"] = reporter_->state();
  job_.together([&] {
    if (folder_) folder_->require_held();
  });
  last_checkpoint_ = checkpoint::save(*saves_, config_.output_dir, contents);
  saved_step_ = step_;
  job_.together([&] {
    if (!reporter_) return;
    reporter_->saved(step_, last_checkpoint_, seconds_since(start));
    if (config_.overwrite_output_dir) folder_->remove_set_aside();
    if (config_.save_total_limit) checkpoint::rotate(config_.output_dir, *config_.save_total_limit);
  });
}

bool Run::turn(double interval, setup::When when) const {
  if (when == setup::When::steps) return step_ % config::interval_steps(interval, total_steps_) == 0;
  return when == setup::When::epoch && feed_->step().ends_epoch;
}

void Run::evaluate_in_turn() {
  const bool last = step_ == total_steps_ && setup::evaluates_when(config_) != setup::When::never;
  if (last || turn(config_.eval_steps.value_or(config_.logging_steps), setup::evaluates_when(config_)))
    evaluate();
}

void Run::finish(bool stopped) {
  const bool kept = stopped || setup::saves_when(config_) != setup::When::never;
  save();
  job_.together([&] { engine_->audit().require_fp8(); });
  std::vector<std::string> next;
  if (!stopped) {
    job_.together([&] {
      if (!session_.prints()) return;
      export_model({.checkpoint = last_checkpoint_,
                    .model = config_.model_name_or_path,
                    .folder = config_.output_dir,
                    .dtype = setup::export_dtype(config_),
                    .shard_bytes = setup::export_bytes(config_),
                    .overwrite = true},
                   encoder_.get());
      // Asked to keep no checkpoints, it leaves none: this one only carried the weights to the final model.
      if (!kept) std::filesystem::remove_all(last_checkpoint_);
    });
    next.push_back("trainer generate " + config_.output_dir + " --template " +
                   (encoder_->chat_template() ? encoder_->chat_template()->name() : "TEMPLATE") +
                   " \"your question\"");
  }
  if (kept) next.push_back("trainer inspect " + last_checkpoint_);
  const std::string products = engine_->instance().audit_of_all().summary();
  job_.together([&] {
    if (!reporter_) return;
    log::info(products);
    reporter_->finish({.status = stopped ? "stopped" : "completed",
                       .final_model = stopped ? last_checkpoint_ : config_.output_dir,
                       .next = next});
  });
}

int Run::run() {
  runtime::Signals signals(config_.stop_grace, session_.prints());
  prepare();
  job_.together([&] {
    feed_->start({.micro = batch_.micro,
                  .accumulation = batch_.accumulation,
                  .rank = job_.rank(),
                  .world = job_.size()});
  });
  if (config_.log_samples) samples_ = std::make_unique<SampleLog>(job_, config_.output_dir, step_);
  loop_ = std::make_unique<StepLoop>(*engine_, *schedule_, batch_.accumulation, step_);
  const bool evaluates = corpus_.evaluation.documents() > 0;
  bool stopped = false;
  signals.at_step(step_, saved_step_);
  signals.begin_steps();
  while (step_ < total_steps_ && !stopped) {
    train_step();
    signals.at_step(step_, saved_step_);
    const std::int64_t wishes = job_.all_max((signals.stop() ? 2 : 0) + (signals.take_save() ? 1 : 0));
    stopped = wishes >= 2 && step_ < total_steps_;
    // Who stops a run may not give it the time of an evaluation.
    if (!stopped && evaluates) evaluate_in_turn();
    if (wishes > 0 || turn(config_.save_steps, setup::saves_when(config_))) save();
    signals.at_step(step_, saved_step_);
  }
  if (!stopped) signals.end_steps();
  finish(stopped);
  return stopped ? static_cast<int>(ExitCode::preempted) : 0;
}

int train(runtime::Session& session, const config::Resolved& config) {
  return Run(session, config).run();
}

}  // namespace octet::train
