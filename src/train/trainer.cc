#include "octet/train/trainer.h"

#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "feed.h"
#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/log.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/folder.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/save.h"
#include "octet/config/derive.h"
#include "octet/data/template_encoder.h"
#include "octet/device/waiting.h"
#include "octet/model/build.h"
#include "octet/optim/schedule.h"
#include "octet/report/reporter.h"
#include "octet/report/throughput.h"
#include "octet/train/corpus.h"
#include "octet/train/engine.h"
#include "octet/train/final_model.h"
#include "octet/train/fit.h"
#include "octet/train/model_folder.h"
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

// One run, from the first look at its configuration to its last line. The members are filled in the order of
// prepare().
class Run {
 public:
  Run(Session& session, const config::Resolved& resolved)
      : session_(session), resolved_(resolved), config_(resolved.config), comm_(session.communicator()) {}

  int run();

 private:
  void prepare();
  void prepare_model();
  void prepare_data();
  /// Micro-batch and level, where the configuration leaves them to the device's memory.
  void choose_sizes(const Feed::Shape& sample);
  /// Of a micro-batch's samples, each.
  Feed::Shape sample_shape() const;
  EngineOptions engine_for(const plan::Choice& choice, const Feed::Shape& sample) const;
  /// Where FP8 costs more than it saves on this device.
  void warn_of_fp8() const;
  void prepare_schedule();
  void prepare_engine();
  void start_reporter();
  zero::StepResult train_step();
  /// Seconds of a step, and what of them went by with waiting.
  struct Waits {
    double seconds = 0, data_seconds = 0, comm_seconds = 0, exposed_seconds = 0;
  };
  void report_step(const zero::StepResult& result, const Waits& waits);
  void guard(const zero::StepResult& result);
  void evaluate();
  void save();
  void finish(bool stopped);
  bool turn(double interval, const std::string& strategy) const;

  Session& session_;
  const config::Resolved& resolved_;
  const config::Config& config_;
  comm::Communicator& comm_;

  model::Architecture architecture_;
  std::unique_ptr<data::TemplateEncoder> encoder_;
  config::Batch batch_;
  plan::Level level_;
  Corpus corpus_;
  std::unique_ptr<Feed> feed_;
  std::int64_t total_steps_ = 0;
  std::unique_ptr<optim::Schedule> schedule_;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<report::Reporter> reporter_;  ///< on the printing rank
  std::int64_t step_ = 0;                       ///< steps done
  std::int64_t saved_step_ = -1;
  std::string last_checkpoint_;
  int skipped_ = 0;
  bool fresh_ = false;  ///< begins with random weights
};

void Run::prepare_model() {
  comm_.together([&] {
    architecture_ = read_model(config_.model_name_or_path);
    fresh_ = config_.train_from_scratch || !has_weights(config_.model_name_or_path);
    encoder_ = std::make_unique<data::TemplateEncoder>(encoder_options(config_));
    if (session_.prints() && !config_.template_name && encoder_->chat_template()) {
      log::info("template: " + encoder_->chat_template()->name() +
                " (it writes what the model's own chat template writes)");
    }
    require_fit(encoder_->tokenizer(), architecture_, config_.model_name_or_path);
    if (!config_.auto_find_batch_size) batch_ = config::resolve_batch(config_, comm_.size());
  });
}

void Run::prepare_data() {
  corpus_ = build_corpus(session_, config_, *encoder_);
  if (config_.auto_find_batch_size) {
    const config::Batch one{.world = comm_.size(), .global = comm_.size()};
    choose_sizes(make_feed(session_, config_, one, *encoder_, corpus_)->shape());
  }
  feed_ = make_feed(session_, config_, batch_, *encoder_, corpus_);
  if (!config_.auto_find_batch_size) choose_sizes(sample_shape());
}

void Run::prepare_schedule() {
  total_steps_ = config::total_steps(config_, feed_->steps_per_epoch());
  schedule_ = std::make_unique<optim::Schedule>(
      optim::ScheduleOptions{.name = config_.lr_scheduler_type,
                             .learning_rate = config_.learning_rate,
                             .warmup_steps = config::warmup_steps(config_, total_steps_),
                             .total_steps = total_steps_,
                             .arguments = config_.lr_scheduler_kwargs});
}

EngineOptions Run::engine_for(const plan::Choice& choice, const Feed::Shape& sample) const {
  const std::int64_t eval_batch = config_.per_device_eval_batch_size;
  EngineOptions options = engine_options(
      config_, architecture_,
      std::max(choice.micro * sample.tokens,
               eval_batch * corpus_.evaluation_items.longest(corpus_.evaluation)),
      std::max(sample.longest, longest_context(corpus_.evaluation, corpus_.evaluation_items)),
      std::max(choice.micro * sample.documents, eval_batch * corpus_.evaluation_items.most_documents()));
  config::Config chosen = config_;
  chosen.per_device_train_batch_size = choice.micro;
  options.max_micro_batches = static_cast<int>(config::resolve_batch(chosen, comm_.size()).accumulation);
  return with_level(std::move(options), choice.level);
}

Feed::Shape Run::sample_shape() const {
  const Feed::Shape all = feed_->shape();
  return {
      .tokens = all.tokens / batch_.micro, .longest = all.longest, .documents = all.documents / batch_.micro};
}

void Run::choose_sizes(const Feed::Shape& sample) {
  const DeviceKind kind = session_.device().stands_for();
  const std::vector<plan::Level> levels = levels_of(config_, kind);
  level_ = levels.front();
  const bool asked = config_.auto_find_batch_size || config_.recompute() == "auto";
  if (!asked && levels.size() == 1) return;
  const std::size_t limit = memory_limit(comm_, session_.device());
  comm_.together([&] {
    Candidates candidates{.build = [&](const plan::Choice& choice) { return engine_for(choice, sample); },
                          .micros = {batch_.micro},
                          .levels = levels,
                          .length = sample.longest,
                          .must_fit = asked};
    if (config_.auto_find_batch_size) {
      candidates.micros = buildable(config::possible_micro_batches(config_, comm_.size()), sample.tokens);
    }
    const plan::Choice choice = choose(candidates, comm_.place(), kind, limit);
    level_ = choice.level;
    config::Config chosen = config_;
    chosen.per_device_train_batch_size = choice.micro;
    batch_ = config::resolve_batch(chosen, comm_.size());
    if (session_.prints() && (asked || level_.transposes_at_use)) {
      log::info("what fits the device's memory: per_device_train_batch_size=" + std::to_string(choice.micro) +
                " " + plan::keys_of(level_));
    }
  });
}

void Run::warn_of_fp8() const {
  if (!config_.fp8) return;
  if (session_.device().kind() != DeviceKind::cuda) {
    log::info("FP8 on a CPU gives the numbers that a GPU would, more slowly than bf16: true alone");
    return;
  }
  plan::Work work = work_of(engine_->options(), {}, config_.cutoff_len, batch_.accumulation);
  work.tokens = feed_->shape().tokens;  // evaluations may have more
  const std::string warning = plan::fp8_warning(work);
  if (!warning.empty()) log::warn(warning);
}

void Run::prepare_engine() {
  const EngineOptions options = engine_for({batch_.micro, level_}, sample_shape());
  comm_.together([&] { engine_ = std::make_unique<Engine>(session_.device(), comm_, options); });
  if (checkpoint_) {
    restore(*engine_, *checkpoint_);
    step_ = checkpoint_->step();
    saved_step_ = step_;
    last_checkpoint_ = checkpoint_->path();
    if (session_.prints()) {
      report_differences(*checkpoint_, config_);
      const std::string fingerprint =
          json_string(checkpoint_->state(), "data_fingerprint", corpus_.fingerprint, checkpoint_->path());
      if (fingerprint != feed_->fingerprint()) {
        log::warn(
            "the training data are not those of the checkpoint: the run goes on at the same step of other "
            "data");
      }
    }
  } else if (fresh_) {
    if (!config_.train_from_scratch && session_.prints()) {
      log::warn("no weights in " + config_.model_name_or_path + ": the model starts from random ones");
    }
    engine_->initialise(static_cast<std::uint64_t>(config_.seed));
  } else {
    engine_->load_weights(config_.model_name_or_path);
  }
}

void Run::start_reporter() {
  report::RunFacts facts;
  facts.output_dir = config_.output_dir;
  facts.run_name = config_.run_name.value_or(std::filesystem::path(config_.output_dir).filename().string());
  facts.logging_dir = config_.logging_dir.value_or("");
  facts.tensorboard = config_.tensorboard();
  facts.plot = config_.plot_loss;
  facts.examples = feed_->examples();
  facts.epochs = feed_->epochs(total_steps_);
  facts.total_steps = total_steps_;
  facts.first_step = step_;
  facts.micro_batch = batch_.micro;
  facts.accumulation = batch_.accumulation;
  facts.world = batch_.world;
  facts.all_parameters = engine_->store().layout().parameter_count();
  facts.trainable_parameters = facts.all_parameters;
  facts.logging_steps = config::interval_steps(config_.logging_steps, total_steps_);
  facts.logging_first_step = config_.logging_first_step;
  facts.save_steps = config::interval_steps(config_.save_steps, total_steps_);
  facts.eval_steps = config::interval_steps(config_.eval_steps.value_or(config_.logging_steps), total_steps_);
  facts.flops_per_token = model::flops_per_token(architecture_, feed_->mean_length());
  facts.gpu_hour_price = config_.gpu_hour_price.value_or(0);
  facts.base_model = config_.model_name_or_path;
  facts.datasets = corpus_.names;
  const auto row = [&facts](const char* name, const std::string& value) {
    facts.hyperparameters.emplace_back(name, value);
  };
  row("learning_rate", std::to_string(config_.learning_rate));
  row("lr_scheduler_type", config_.lr_scheduler_type);
  row("total_train_batch_size", std::to_string(batch_.global));
  row("seed", std::to_string(config_.seed));
  reporter_ = std::make_unique<report::Reporter>(std::move(facts));
  log::open_file(config_.output_dir + "/training.log");
  write_file_atomically(config_.output_dir + "/config.resolved.yaml", resolved_.to_yaml());
}

void Run::prepare() {
  if (session_.prints()) {
    for (const std::string& note : resolved_.notes) log::info(note);
    log::info("device: " + session_.device().description() + ", " + std::to_string(comm_.size()) + " rank" +
              (comm_.size() > 1 ? "s on " + std::to_string(session_.place().nodes) + " node" +
                                      (session_.place().nodes > 1 ? "s" : "")
                                : ""));
  }
  comm_.watch(
      {.timeout_seconds = static_cast<double>(config_.ddp_timeout), .trace_folder = config_.output_dir});
  prepare_model();
  const auto start = find_start(comm_, config_);
  if (start) comm_.together([&] { checkpoint_.emplace(*start); });
  prepare_data();
  comm_.together([&] { prepare_schedule(); });
  prepare_engine();
  comm_.together([&] {
    if (!session_.prints()) return;
    if (!start && config_.overwrite_output_dir) {
      for (const auto& [step, path] : checkpoint::list_checkpoints(config_.output_dir)) {
        std::filesystem::remove_all(path);
      }
    }
    start_reporter();
    if (start) {
      log::info("Training is resumed from " + *start +
                "; change `output_dir` or use `overwrite_output_dir` to avoid");
    }
    if (start && step_ >= total_steps_) {
      log::info("nothing is left to train: " + *start + " is of step " + with_commas(step_) + " of " +
                with_commas(total_steps_) + "; raise max_steps or num_train_epochs to go on");
    }
    log::info(show_example(feed_->shown(), *encoder_, false));
    log::info(engine_->audit().table());
    warn_of_fp8();
    std::string memory = "memory of a rank: " + human_bytes(static_cast<double>(engine_->arena().bytes()));
    for (const MemoryRow& r : engine_->memory()) {
      memory += "\n  " + r.name + std::string(r.name.size() < 14 ? 14 - r.name.size() : 1, ' ') +
                human_bytes(static_cast<double>(r.bytes));
    }
    log::info(memory);
    reporter_->start();
  });
}

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
  data::HostBatch first = feed_->next(true, &waits.data_seconds);
  engine_->begin(static_cast<int>(batch_.accumulation));
  engine_->micro_batch(first);
  for (std::int64_t i = 1; i < batch_.accumulation; ++i) {
    engine_->micro_batch(feed_->next(false, &waits.data_seconds));
  }
  const zero::StepResult result = engine_->finish(schedule_->learning_rate(step_));
  ++step_;
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

}  // namespace

int train(Session& session, const config::Resolved& config) {
  return Run(session, config).run();
}

}  // namespace octet::train
