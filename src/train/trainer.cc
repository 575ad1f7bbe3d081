#include "octet/train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/save.h"
#include "octet/device/waiting.h"
#include "octet/report/throughput.h"
#include "octet/train/final_model.h"
#include "run.h"
#include "signals.h"
#include "start.h"

namespace octet::train {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::int64_t peak_memory() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<std::int64_t>(usage.ru_maxrss) * 1024;
}

// A norm that is not finite skips the step; so many in a row mean that the run is lost.
constexpr int kMaxSkipped = 5;

}  // namespace

void Run::guard(const zero::StepResult& result) {
  skipped_ = result.skipped && result.label_tokens > 0 ? skipped_ + 1 : 0;
  if (skipped_ == 0) return;
  if (session_.prints()) {
    log::warn("step " + std::to_string(step_) + ": the gradient is not finite (norm " +
              std::to_string(result.grad_norm) + "); the step was skipped");
  }
  if (skipped_ < kMaxSkipped) return;
  comm_.together([&] {
    throw Error(
        {.what = "the gradient was not finite in " + std::to_string(kMaxSkipped) + " steps in a row",
         .found = "loss " + std::to_string(result.loss_sum / static_cast<double>(result.label_tokens)),
         .where = "step " + std::to_string(step_),
         .fix = "lower learning_rate, or go back to an earlier checkpoint"});
  });
}

void Run::report_step(const zero::StepResult& result, const Waits& waits) {
  const auto traffic = comm_.take_traffic();
  if (!reporter_) return;
  report::StepFacts facts;
  facts.step = step_;
  const Feed::Step step = feed_->step();
  facts.epoch = step.epoch;
  facts.loss = result.loss_sum / static_cast<double>(std::max<std::int64_t>(1, result.label_tokens));
  facts.grad_norm = result.grad_norm;
  facts.learning_rate = result.learning_rate;
  facts.seconds = waits.seconds;
  facts.tokens = step.tokens;
  facts.samples = step.samples;
  facts.label_tokens = result.label_tokens;
  facts.memory_bytes = static_cast<std::int64_t>(engine_->arena().bytes());
  facts.memory_peak_bytes = peak_memory();
  facts.data_seconds = waits.data_seconds;
  facts.comm_seconds = waits.comm_seconds;
  facts.comm_exposed_seconds = waits.exposed_seconds;
  if (comm_.size() > 1) {
    for (const auto& kind : traffic) {
      if (kind.calls > 0) facts.comm_kinds.push_back({kind.kind, kind.seconds, kind.bytes_sent});
    }
  }
  reporter_->step(facts);
}

zero::StepResult Run::train_step() {
  const auto start = Clock::now();
  Waits waits{.comm_seconds = -comm_.seconds_busy(), .exposed_seconds = -seconds_waited(engine_->compute())};
  const zero::StepResult result =
      loop_->take([&](bool first) { return feed_->next(first, &waits.data_seconds); });
  step_ = loop_->done();
  waits.seconds = seconds_since(start);
  waits.comm_seconds += comm_.seconds_busy();
  waits.exposed_seconds += seconds_waited(engine_->compute());
  report_step(result, waits);
  guard(result);
  return result;
}

void Run::evaluate() {
  const auto start = Clock::now();
  const std::int64_t micro = config_.per_device_eval_batch_size;
  const std::int64_t items = corpus_.evaluation_items.size();
  const std::int64_t each = micro * comm_.size();
  std::vector<double> losses;  // of each of this rank's batches
  std::int64_t labels = 0;
  for (std::int64_t first = 0; first < items; first += each) {
    std::vector<std::int64_t> which;
    for (std::int64_t i = 0; i < micro; ++i) {
      const std::int64_t item = first + comm_.rank() * micro + i;
      which.push_back(item < items ? item : -1);
    }
    engine_->evaluate(data::make_batch(corpus_.evaluation, corpus_.evaluation_items, which),
                      &losses.emplace_back(0.0), &labels);
  }
  const auto batches = static_cast<std::int64_t>(losses.size());
  const auto of_ranks = comm_.all_gather_bytes(
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
  labels = comm_.all_sum(labels);
  if (!reporter_) return;
  reporter_->evaluation({.step = step_,
                         .epoch = feed_->step().epoch,
                         .loss = total / static_cast<double>(std::max<std::int64_t>(1, labels)),
                         .seconds = seconds_since(start),
                         .samples = items,
                         .batches = batches,
                         .perplexity = config_.stage == "pt"});
}

void Run::save() {
  if (saved_step_ == step_) return;
  checkpoint::CheckpointContents contents;
  contents.step = step_;
  contents.zero_stage = static_cast<int>(config_.zero_stage);
  contents.slices = state_slices(*engine_);
  contents.config_yaml = resolved_.to_yaml();
  contents.state = Json{{"step", step_},
                        {"total_steps", total_steps_},
                        {"epoch", feed_->step().epoch},
                        {"samples_seen", step_ * batch_.global},
                        {"seed", config_.seed},
                        {"order_seed", config_.order_seed()},
                        {"global_batch", batch_.global},
                        {"items", feed_->examples()},
                        {"stream", feed_->position()},
                        {"data_fingerprint", feed_->fingerprint()},
                        {"resume_hash", config::resume_hash(config_)},
                        {"learning_rate", schedule_->learning_rate(step_)},
                        {"lr_scheduler_type", config_.lr_scheduler_type}};
  if (reporter_) contents.state["trainer_state"] = reporter_->state();
  last_checkpoint_ = checkpoint::save(comm_, config_.output_dir, contents);
  saved_step_ = step_;
  comm_.together([&] {
    if (!reporter_) return;
    reporter_->saved(step_, last_checkpoint_);
    if (config_.save_total_limit) checkpoint::rotate(config_.output_dir, *config_.save_total_limit);
  });
}

bool Run::turn(double interval, const std::string& strategy) const {
  if (strategy == "steps") return step_ % config::interval_steps(interval, total_steps_) == 0;
  return strategy == "epoch" && feed_->step().ends_epoch;
}

void Run::finish(bool stopped) {
  const bool kept = stopped || config_.save_strategy != "no";
  save();
  comm_.together([&] { engine_->audit().require_fp8(); });
  std::vector<std::string> next;
  if (!stopped) {
    comm_.together([&] {
      if (!session_.prints()) return;
      export_model({.checkpoint = last_checkpoint_,
                    .model = config_.model_name_or_path,
                    .folder = config_.output_dir,
                    .dtype = export_dtype(config_),
                    .shard_bytes = export_bytes(config_),
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
  comm_.together([&] {
    if (!reporter_) return;
    log::info(engine_->audit().summary());
    reporter_->finish({.status = stopped ? "stopped" : "completed",
                       .final_model = stopped ? last_checkpoint_ : config_.output_dir,
                       .next = next});
  });
}

int Run::run() {
  prepare();
  Signals signals;
  comm_.together([&] {
    feed_->start({.micro = batch_.micro,
                  .accumulation = batch_.accumulation,
                  .rank = comm_.rank(),
                  .world = comm_.size()},
                 step_, checkpoint_ ? checkpoint_->state().value("stream", Json()) : Json());
  });
  loop_ = std::make_unique<StepLoop>(*engine_, *schedule_, batch_.accumulation, step_);
  const bool evaluates = corpus_.evaluation.documents() > 0;
  bool stopped = false;
  while (step_ < total_steps_ && !stopped) {
    train_step();
    const std::int64_t wishes = comm_.all_max((signals.stop() ? 2 : 0) + (signals.take_save() ? 1 : 0));
    stopped = wishes >= 2;
    if (evaluates && (turn(config_.eval_steps.value_or(config_.logging_steps), config_.eval_strategy) ||
                      (step_ == total_steps_ && config_.eval_strategy != "no"))) {
      evaluate();
    }
    if (wishes > 0 || turn(config_.save_steps, config_.save_strategy)) save();
  }
  finish(stopped && step_ < total_steps_);
  return stopped && step_ < total_steps_ ? static_cast<int>(ExitCode::preempted) : 0;
}

int train(Session& session, const config::Resolved& config) {
  return Run(session, config).run();
}

}  // namespace octet::train
