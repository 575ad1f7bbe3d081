#include "octet/train/trainer.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>

#include "faults/spikes.h"
#include "logs/cast_log.h"
#include "logs/expert_log.h"
#include "octet/base/clock.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/log.h"
#include "octet/base/log_start.h"
#include "octet/base/strings.h"
#include "octet/comm/launchers.h"
#include "octet/device/cpu.h"
#include "octet/report/number.h"
#include "octet/report/progress.h"
#include "octet/runtime/signals.h"
#include "octet/setup/adapters.h"
#include "octet/setup/freezing.h"
#include "octet/train/adapter_folder.h"
#include "octet/train/final_model.h"
#include "run.h"
#include "start.h"

namespace octet::train {
namespace {

using Clock = std::chrono::steady_clock;

/// Requests of a rank between two steps.
struct Wishes {
  bool save = false, stop = false, settle = false;
  bool data = false;  ///< its data are unreadable
};

/// Returns the requests of any rank.
Wishes wishes_of_all(comm::Channel& channel, const Wishes& own) {
  Wishes all;
  const int bits = (own.save ? 1 : 0) + (own.stop ? 2 : 0) + (own.settle ? 4 : 0) + (own.data ? 8 : 0);
  for (const std::int64_t of_rank : channel.all_gather_int(bits)) {
    all.save |= (of_rank & 1) != 0;
    all.stop |= (of_rank & 2) != 0;
    all.settle |= (of_rank & 4) != 0;
    all.data |= (of_rank & 8) != 0;
  }
  return all;
}

/// Quotes a word for a shell.
std::string shell_word(const std::string& word) {
  constexpr std::string_view kPlain = "%+,-./:=@_";
  const bool plain = !word.empty() && std::ranges::all_of(word, [&](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || kPlain.find(c) != std::string_view::npos;
  });
  if (plain) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

bool was_skipped(const store::StepResult& result) {
  return result.skipped && result.label_tokens > 0;
}

}  // namespace

void Run::guard(const store::StepResult& result, const std::string& spike) {
  if (!spike.empty()) {
    not_finite_ = 0;
    return stands_out(spike, !result.skipped);
  }
  const bool finite = !was_skipped(result) && std::isfinite(result.loss_sum);
  not_finite_ = finite ? 0 : not_finite_ + 1;
  if (finite) return;
  look_at_base();
  const std::string figures = "loss " + report::python_number(mean_loss(result), 6) + ", gradient norm " +
                              report::python_number(result.grad_norm, 6);
  if (spikes_->action() != setup::SpikeAction::skip)
    return stands_out("its loss or its gradient is not finite (" + figures + ")", !result.skipped);
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
                 .found = figures + (base_wrong_.empty() ? "" : "; not finite in the base: " + base_wrong_),
                 .where = "step " + std::to_string(step_),
                 .fix = base_wrong_.empty() ? "lower learning_rate, or resume from an earlier checkpoint"
                                            : "fetch the weights again, or name a base with finite weights",
                 .code = base_wrong_.empty() ? ExitCode::failure : ExitCode::usage});
  });
}

bool Run::logs_at(std::int64_t step) const {
  return report::is_logged(step, config::interval_steps(config_.logging_steps, total_steps_),
                           config_.logging_first_step, total_steps_);
}

void Run::report_step(const store::StepResult& result, const Waits& waits) {
  auto traffic = session_.take_traffic();
  std::ranges::move(engine_->instance().take_traffic(), std::back_inserter(traffic));
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
  if (logs_at(step_) && architecture_.experts.count > 0) {
    const model::ExpertLoads loads = loads_of_all(job_, engine_->core().take_expert_loads());
    facts.experts = expert_fields(loads);
    const std::string idle = idle_experts_.look(step_, loads);
    if (!idle.empty() && session_.prints()) log::warn("step " + std::to_string(step_) + ": " + idle);
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
  facts.counts = check_counts();
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
  begins("a step");
  const auto start = Clock::now();
  Waits waits;
  session_.take_traffic();  // discards traffic of evaluations and checkpoints
  engine_->watch_casts(
      {.next = watches_casts() && logs_at(step_ + 1), .after = watches_casts() && logs_at(step_ + 2)});
  engine_->store().limit_steps(spikes_->limits_of_update());
  StepWatch watch(session_.data(), engine_->compute());
  std::vector<runtime::HostBatch> ahead = batches_ahead(&waits.data_seconds);
  std::size_t given = 0;
  const auto next = [&](bool first) {
    runtime::HostBatch batch =
        given < ahead.size() ? std::move(ahead[given++]) : feed_->next(first, &waits.data_seconds);
    if (samples_) samples_->add(batch);
    return batch;
  };
  std::function<bool()> agrees;
  if (faults_) agrees = [this] { return agreed(faults_->before_update(), step_ + 1); };
  const store::StepResult result = loop_->take(next, agrees);
  if (back_ != Back::no) return result;
  step_ = loop_->done();
  if (faults_) faults_->updated(step_, plans_save(step_ + 1));
  samples_seen_ += feed_->step().samples;
  if (samples_) samples_->end_step(step_);
  waits.seconds = seconds_since(start);
  if (interval_) interval_->stepped(waits.seconds);
  if (memory_interval_) memory_interval_->stepped(waits.seconds);
  waits.messages = watch.take();
  const std::string spike = spikes_->look(result);
  log::end_start();
  report_step(result, waits);
  engine_->instance().check_products();
  guard(result, spike);
  return result;
}

void Run::keep_before_data_error() {
  if (step_ == 0 || !may_be_saved()) return;
  save_for_good();
  if (session_.prints()) {
    log::info("the data cannot be read any further; the checkpoint of step " + with_commas(step_) +
              " is kept: " + last_checkpoint_);
  }
}

void Run::evaluate(double epoch) {
  begins("an evaluation");
  const auto start = Clock::now();
  const std::int64_t micro = config::evaluation_batch(config_, batch_.micro);
  const std::int64_t items = corpus_.evaluation_items.size();
  const std::int64_t each = micro * job_.size();
  std::vector<double> losses;  // of each batch of this rank
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
  // Summed in batch order, so that the result is equal on every rank and for any world size.
  double total = 0;
  for (std::size_t batch = 0; batch < losses.size(); ++batch) {
    for (const std::string& bytes : of_ranks) {
      double part = 0;
      std::memcpy(&part, bytes.data() + batch * sizeof part, sizeof part);
      total += part;
    }
  }
  labels = job_.all_sum(labels);
  evaluated_ = {.step = step_, .loss = total / static_cast<double>(std::max<std::int64_t>(1, labels))};
  if (lowest_.step < 0 || evaluated_.loss < lowest_.loss) lowest_ = evaluated_;
  if (!reporter_) return;
  reporter_->evaluation({.step = step_,
                         .epoch = epoch,
                         .loss = evaluated_.loss,
                         .seconds = seconds_since(start),
                         .samples = items,
                         .batches = batches,
                         .perplexity = setup::is_pretraining(config_)});
}

bool Run::turn(double interval, setup::When when) const {
  if (when == setup::When::steps) return step_ % config::interval_steps(interval, total_steps_) == 0;
  return when == setup::When::epoch && feed_->step().ends_epoch;
}

bool Run::evaluates_here() const {
  return turn(config_.eval_steps.value_or(config_.logging_steps), setup::evaluates_when(config_));
}

void Run::evaluate_in_turn() {
  const bool last = step_ == total_steps_ && setup::evaluates_when(config_) != setup::When::never;
  if (!last && !evaluates_here()) return;
  evaluate(feed_->step().epoch);
  // The evaluation at the end of the run does not count, because a longer run would not have it.
  if (evaluates_here()) tell_schedule();
}

void Run::write_final_model() {
  const std::string& from = best_.step >= 0 ? best_.path : last_checkpoint_;
  if (best_.step >= 0) {
    log::info("the final model is the checkpoint of step " + with_commas(best_.step) +
              ": its evaluation loss " + report::python_number(best_.loss, 6) +
              " is the smallest of all checkpoints" +
              (lowest_.step >= 0 && lowest_.loss < best_.loss
                   ? "; the loss of step " + with_commas(lowest_.step) + ", which has no checkpoint, was " +
                         report::python_number(lowest_.loss, 6)
                   : ""));
  }
  if (setup::trains_adapters(config_)) {
    export_adapter(
        {.folder = config_.output_dir, .checkpoint = from, .overwrite = true, .encoder = encoder_.get()},
        config_);
    return;
  }
  export_model({.checkpoint = from,
                .model = config_.model_name_or_path,
                .folder = config_.output_dir,
                .dtype = setup::export_dtype(config_),
                .shard_bytes = setup::export_bytes(config_),
                .overwrite = true,
                .part = setup::trains_parts(config_)},
               encoder_.get());
}

std::vector<std::string> Run::next_commands() const {
  std::vector<std::string> commands;
  const std::string program = shell_word(comm::command_line().front());
  std::string model = shell_word(config_.output_dir);
  if (setup::trains_adapters(config_)) {
    // The adapter's folder names only the base, not adapters that were merged into it.
    std::string adapters;
    for (const std::string& folder : setup::given_adapters(config_).added) adapters += folder + ",";
    if (!adapters.empty())
      model =
          shell_word(config_.model_name_or_path) + " --adapter " + shell_word(adapters + config_.output_dir);
    commands.push_back(program + " export " + model + " " + shell_word(config_.output_dir + "-merged") +
                       " --merge");
  }
  std::string asked = program + " generate " + model;
  if (const auto& chat = encoder_->chat_template())
    asked += " --template " + shell_word(config_.template_name.value_or(chat->name()));
  commands.push_back(asked + (encoder_->chat_template() ? " \"your question\"" : " \"the begin of a text\""));
  return commands;
}

// Runs on several hosts also need the launcher's options, which ranks do not see.
std::string Run::resuming_command() const {
  std::string command;
  if (job_.size() > 1) {
    const bool supervised = !report::supervised_run().empty();
    const bool ours = supervised || comm::stops_are_handed_on(environment_variable);
    command = std::string(supervised ? "launch/supervise"
                          : ours     ? "launch/mpirun"
                                     : "mpirun") +
              " -np " + std::to_string(job_.size()) + " ";
  } else if (!report::supervised_run().empty()) {
    command = "launch/supervise ";
  }
  // A run with a configured start would start there again.
  const std::string& wish = config_.resume_from_checkpoint.value_or("");
  const bool elsewhere = names_checkpoint(config_) || wish == "false";
  constexpr std::string_view kKey = "resume_from_checkpoint=";
  for (const std::string& word : comm::command_line()) {
    const std::size_t key = std::min(word.find_first_not_of('-'), word.size());
    if (!elsewhere || !word.substr(key).starts_with(kKey)) command += shell_word(word) + " ";
  }
  if (elsewhere) command += shell_word(std::string(kKey) + last_checkpoint_) + " ";
  command.pop_back();
  return command;
}

void Run::finish(bool stopped) {
  const bool kept = stopped || setup::saves_when(config_) != setup::When::never;
  if (!stopped) require_updates();
  save_for_good();
  feed_->report_end();
  begins("the writing of the final model");
  job_.together([&] { engine_->audit().require_fp8(); });
  std::vector<std::string> next;
  if (stopped) next.push_back("to resume: " + resuming_command());
  if (!stopped) {
    job_.together([&] {
      if (!session_.prints()) return;
      write_final_model();
      // No checkpoints are wanted: this one only held the weights for the final model.
      if (kept) return;
      std::filesystem::remove_all(last_checkpoint_);
      log::info("save_strategy: no: " + last_checkpoint_ + " is removed, the model is kept");
    });
    next = next_commands();
  }
  if (kept)
    next.push_back(shell_word(comm::command_line().front()) + " inspect " + shell_word(last_checkpoint_));
  const std::string products = engine_->instance().audit_of_all().summary();
  job_.together([&] {
    if (!reporter_) return;
    if (config_.fp8) log::info(products);
    reporter_->finish({.status = stopped ? "stopped" : "completed",
                       .final_model = stopped ? last_checkpoint_ : config_.output_dir,
                       .model_step = stopped ? -1 : best_.step,
                       .keeps_checkpoint = kept,
                       .next = next});
  });
}

void Run::start_steps() {
  job_.together([&] {
    feed_->start(
        {.micro = batch_.micro, .accumulation = batch_.passes, .rank = job_.rank(), .world = job_.size()});
  });
  samples_.reset();
  if (config_.log_samples) samples_ = std::make_unique<SampleLog>(job_, config_.output_dir, step_);
  loop_ = std::make_unique<StepLoop>(*engine_, *schedule_, batch_.passes, step_);
  if (faults_) faults_->loaded(step_, plans_save(step_ + 1));
}

void Run::save_and_measure() {
  const auto start = Clock::now();
  save();
  if (!interval_) return;
  // For a concurrent save, the cost is the time that steps wait for it.
  if (saved_step_ == step_ || taken_.step == step_) {
    interval_->saved(step_, seconds_since(start));
  } else {
    interval_->failed(step_);
  }
}

void Run::take_and_measure() {
  const auto start = Clock::now();
  take_to_memory();
  if (memory_interval_) memory_interval_->saved(step_, seconds_since(start));
}

void Run::make_intervals() {
  const auto make = [this](const char* what) {
    return std::make_unique<SaveInterval>(job_, what, *config_.mtbf_hours, step_, total_steps_);
  };
  if (setup::chooses_save_steps(resolved_)) interval_ = make("checkpoints");
  if (memory_ && setup::chooses_memory_steps(config_)) memory_interval_ = make("checkpoints in memory");
}

int Run::run() {
  runtime::Signals signals(config_.stop_grace, session_.prints(),
                           comm::stops_are_handed_on(environment_variable));
  const int threads = cpu::op_threads();
  prepare();
  // A temporary device with a number of threads would set them for the whole run.
  check(cpu::op_threads() == threads, "ops keep the threads that the session gave them");
  make_intervals();
  start_steps();
  make_saver();
  if (checkpoint_) restore_best();
  const bool evaluates = corpus_.evaluation.documents() > 0;
  bool stopped = false;
  signals.at_step(step_, saved_step_);
  signals.begin_steps();
  while (step_ < total_steps_ && !stopped) {
    make_up_for_evaluation();
    try {
      train_step();
    } catch (const feed::DataError&) {
      keep_before_data_error();
      throw;
    }
    if (goes_back()) continue;
    if (step_ == total_steps_) require_updates();
    look_at_memory();
    signals.at_step(step_, saved_step_);
    const Wishes wishes = wishes_of_all(job_, {.save = signals.take_save(),
                                               .stop = signals.stop(),
                                               .settle = saver_->asks_to_settle(),
                                               .data = feed_->failed()});
    if (wishes.data && step_ < total_steps_) {
      keep_before_data_error();
      feed_->require_data();
    }
    stopped = wishes.stop && step_ < total_steps_;
    if (wishes.settle) settle_save();
    // A stop request may not leave time for an evaluation.
    if (!stopped && evaluates) evaluate_in_turn();
    const bool due =
        interval_ ? interval_->is_due(step_) : turn(config_.save_steps, setup::saves_when(config_));
    const bool saves = due || wishes.save || wishes.stop || saver_->retries_at(step_);
    // Only checked state is saved, including state after the last step.
    const bool keeps = takes_memory(step_) && !stopped;
    if (saves || keeps || saver_->gives_up() || step_ == total_steps_) {
      if (!may_be_saved() && goes_back()) continue;
    }
    if (due && !stopped) tell_that_it_waits();
    if (saves) save_and_measure();
    if (keeps) take_and_measure();
    if (saver_->gives_up()) save_for_good();
    signals.at_step(step_, saved_step_);
  }
  log::end_start();
  if (!stopped) signals.end_steps();
  finish(stopped);
  if (memory_) memory_->remove();
  return stopped ? static_cast<int>(ExitCode::preempted) : 0;
}

int train(runtime::Session& session, const config::Resolved& config) {
  return Run(session, config).run();
}

}  // namespace octet::train
