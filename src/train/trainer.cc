#include "octet/train/trainer.h"

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "evaluations.h"
#include "faults/finite_weights.h"
#include "faults/step_guard.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/shell.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/launchers.h"
#include "octet/config/config.h"
#include "octet/device/cpu.h"
#include "octet/report/progress.h"
#include "octet/runtime/same_model.h"
#include "octet/runtime/session.h"
#include "octet/runtime/signals.h"
#include "octet/setup/run_options.h"
#include "octet/setup/setup.h"
#include "octet/text/template_match.h"
#include "octet/train/rehearsal.h"
#include "run_commands.h"
#include "run_context.h"
#include "saves/memory_saves.h"
#include "saves/saves.h"
#include "sizing/sizing.h"
#include "start/references.h"
#include "start/run_start.h"
#include "start/start_notes.h"
#include "train_steps.h"

namespace octet::train {

// One run of the trainer: its start, its steps and its end.

/// One run, from its configuration to its last line. It calls its objects in order, and holds no other state.
/// All functions are collective unless they are const.
class Run {
 public:
  Run(runtime::Session& session, const config::Resolved& resolved) : run_(session, resolved) {}

  /// Returns the exit code of the run.
  int run();

 private:
  void prepare();
  /// Makes the engine, and loads the checkpoint or the base.
  void prepare_engine();
  void begin_steps();
  /// Takes a step. If the data cannot be read, saves the complete steps before the error ends the run.
  void train_step();
  /// Whether the steps are complete, or early_stopping_steps ends the run.
  bool is_done() const { return run_.step >= run_.total_steps || evaluations_.ends_run(); }
  /// Saves the checkpoints that are due after a step. Returns false if the run has returned to a checkpoint
  /// instead.
  bool save_in_turn(const Wishes& wishes, bool stopped);
  void keep_before_data_error();
  /// Rolls back to the newest checkpoint if a check or a step requested it. Returns whether it did.
  bool goes_back();
  /// Restores counters from the checkpoint that was read.
  void stand_at_checkpoint();
  /// Returns the contents of a checkpoint without the slices.
  checkpoint::CheckpointContents checkpoint_contents() const;
  void finish(bool stopped);
  /// Returns the commands to show at the end. `kept`: the last checkpoint is kept.
  std::vector<std::string> last_commands(bool stopped, bool kept) const;

  RunContext run_;
  RunParts parts_;
  Evaluations evaluations_{run_, parts_};
  Saves saves_{run_, parts_, evaluations_, [this] { return checkpoint_contents(); }};
  MemorySaves memory_saves_{run_, parts_, saves_, [this] { return checkpoint_contents(); }};
  StepGuard guard_{run_, parts_, saves_};
  TrainSteps steps_{run_, parts_, guard_, saves_, memory_saves_};
  Sizing sizing_{run_, parts_};
  StartNotes notes_{run_, parts_, sizing_, saves_};
  RunStart start_{run_, parts_, sizing_, evaluations_, notes_};
  References references_{run_, parts_, sizing_};
};

void Run::prepare() {
  notes_.say_device();
  run_.job.watch(setup::watch_options(run_.config, run_.config.output_dir));
  run_.begins_once("the start of the run");
  saves_.open();
  notes_.open_error_log();
  start_.read_model();
  references_.check_model();
  memory_saves_.open();
  start_.open_checkpoint();
  // Tokenizing long texts can take hours.
  run_.begins_once("the reading of the data", 8);
  start_.read_data();
  sizing_.choose();
  start_.continue_data();
  references_.prepare();
  run_.begins_once("the loading of model and checkpoint");
  start_.prepare_schedule();
  prepare_engine();
  run_.job.together([&] { saves_.require_disk(); });
  notes_.begin(start_.from());
}

void Run::prepare_engine() {
  if (setup::leaves_saves_open(run_.config)) saves_.wait_quietly();
  sizing_.choose_where_to_save();
  start_.make_engine();
  if (parts_.checkpoint) {
    sizing_.say_storage_of_checkpoint();
    stand_at_checkpoint();
    if (run_.prints()) start_.say_differences();
  } else {
    start_.begin_weights();
    require_finite_base(run_, parts_);
  }
  guard_.make();
  memory_saves_.require_room();
  rehearse(run_.job, run_.session.device(), *parts_.engine);
  notes_.measure();
}

void Run::stand_at_checkpoint() {
  steps_.stand_at_checkpoint();
  saves_.stand_at_checkpoint(start_.on_disk());
  guard_.stand_at_checkpoint();
}

void Run::begin_steps() {
  saves_.make_interval();
  memory_saves_.make_interval();
  steps_.start();
  saves_.begin();
}

checkpoint::CheckpointContents Run::checkpoint_contents() const {
  const config::Config& config = run_.config;
  checkpoint::CheckpointContents contents;
  contents.step = run_.step;
  contents.zero_stage = static_cast<int>(config.zero_stage);
  contents.direct = true;
  contents.config_yaml = run_.resolved.to_yaml();
  contents.state = Json{{"step", run_.step},
                        {"total_steps", run_.total_steps},
                        {"epoch", parts_.feed->step().epoch},
                        {"samples_seen", run_.samples_seen},
                        {"seed", config.seed},
                        {"order_seed", config.order_seed()},
                        {"global_batch", parts_.batch.global},
                        {"items", parts_.feed->examples()},
                        {"place", parts_.feed->position()},
                        {"data_fingerprint", parts_.feed->fingerprint()},
                        {"model", runtime::model_state(parts_.architecture, parts_.encoder->tokenizer())},
                        {"adapters", parts_.adapters},
                        {"model_config", parts_.model_config},
                        {"resume_hash", config::resume_hash(config)},
                        {"learning_rate", parts_.schedule->learning_rate(run_.step)},
                        {"lr_scheduler_type", config.lr_scheduler_type},
                        {"not_finite_in_a_row", guard_.not_finite_in_a_row()}};
  // The configuration has only the file's name, not its contents.
  if (config.template_name && text::is_template_file(*config.template_name))
    (*contents.state)["template_words"] = parts_.encoder->chat_template()->words_hash();
  guard_.add_to(*contents.state);
  evaluations_.add_to(*contents.state);
  saves_.add_best_to(*contents.state);
  if (parts_.reporter) (*contents.state)["trainer_state"] = parts_.reporter->state();
  return contents;
}

void Run::train_step() {
  try {
    steps_.take();
  } catch (const feed::DataError&) {
    keep_before_data_error();
    throw;
  }
}

void Run::keep_before_data_error() {
  if (run_.step == 0 || !guard_.may_be_saved()) return;
  saves_.save_for_good();
  if (run_.prints()) {
    log::info("the data cannot be read any further; the checkpoint of step " + with_commas(run_.step) +
              " is kept: " + saves_.last_checkpoint());
  }
}

bool Run::goes_back() {
  if (!guard_.wants_back()) return false;
  const Back how = guard_.take_wish();
  run_.begins("the return to a checkpoint", 8);
  saves_.settle();
  // Memory may hold a newer checkpoint than the checkpoint of the rollback.
  memory_saves_.forget();
  const std::string path = guard_.checkpoint_to_return_to(how);
  const std::int64_t left = run_.step;
  const Json place = parts_.feed->position();
  start_.read_again(path);
  stand_at_checkpoint();
  start_.restart_data(how == Back::other_data ? &place : nullptr);
  steps_.start();
  evaluations_.forget_latest();
  notes_.begin_again(start_.from(), left, how);
  return true;
}

bool Run::save_in_turn(const Wishes& wishes, bool stopped) {
  const bool due = saves_.is_due();
  const bool saves = due || wishes.save || wishes.stop || saves_.retries();
  const bool keeps = memory_saves_.takes(run_.step) && !stopped;
  // Only checked state is saved, including state after the last step.
  if (saves || keeps || saves_.gives_up() || is_done()) {
    if (!guard_.may_be_saved() && goes_back()) return false;
  }
  if (due && !stopped) saves_.tell_that_it_waits();
  if (saves) saves_.save_and_measure();
  if (keeps) memory_saves_.take();
  if (saves_.gives_up()) saves_.save_for_good();
  return true;
}

std::vector<std::string> Run::last_commands(bool stopped, bool kept) const {
  const std::vector<std::string> line = comm::command_line();
  std::vector<std::string> commands;
  if (stopped) {
    const Launch launch{.command_line = line,
                        .ranks = run_.job.size(),
                        .supervised = !report::supervised_run().empty(),
                        .hands_on_stops = comm::stops_are_handed_on(environment_variable)};
    commands = {"to resume: " + resuming_command(launch, run_.config, saves_.last_checkpoint())};
  } else {
    const auto& chat = parts_.encoder->chat_template();
    const std::string words = chat ? run_.config.template_name.value_or(chat->name()) : "";
    commands = next_commands(
        line.front(), run_.config,
        {.folder = run_.config.output_dir, .template_name = words, .scores = parts_.architecture.scores});
  }
  if (kept) commands.push_back(shell_word(line.front()) + " inspect " + shell_word(saves_.last_checkpoint()));
  return commands;
}

void Run::finish(bool stopped) {
  const bool kept = stopped || setup::saves_when(run_.config) != setup::When::never;
  if (!stopped) guard_.require_updates();
  saves_.save_for_good();
  parts_.feed->report_end();
  run_.begins("the writing of the final model");
  run_.job.together([&] { parts_.engine->audit().require_fp8(); });
  if (!stopped) {
    run_.job.together([&] {
      if (!run_.prints()) return;
      saves_.write_final_model();
      // No checkpoints are wanted: this one only held the weights for the final model.
      if (kept) return;
      std::filesystem::remove_all(saves_.last_checkpoint());
      log::info("save_strategy: no: " + saves_.last_checkpoint() + " is removed, the model is kept");
    });
  }
  const std::string gemms = parts_.engine->instance().audit_of_all().summary();
  run_.job.together([&] {
    if (!parts_.reporter) return;
    if (run_.config.fp8) log::info(gemms);
    parts_.reporter->finish({.status = stopped ? "stopped" : "completed",
                             .final_model = stopped ? saves_.last_checkpoint() : run_.config.output_dir,
                             .model_step = stopped ? -1 : saves_.model_step(),
                             .keeps_checkpoint = kept,
                             .next = last_commands(stopped, kept)});
  });
}

int Run::run() {
  runtime::Signals signals(run_.config.stop_grace, run_.prints(),
                           comm::stops_are_handed_on(environment_variable));
  const int threads = cpu::op_threads();
  prepare();
  // A temporary device with a number of threads would set them for the whole run.
  check(cpu::op_threads() == threads, "ops keep the threads that the session gave them");
  begin_steps();
  bool stopped = false;
  signals.at_step(run_.step, saves_.saved_step());
  signals.begin_steps();
  if (run_.prints() && run_.step < run_.total_steps && is_done())
    log::info("the run has ended early, and trains no more; a larger early_stopping_steps lets it continue");
  while (!is_done() && !stopped) {
    evaluations_.make_up();
    if (is_done()) break;
    train_step();
    if (goes_back()) continue;
    if (run_.step == run_.total_steps) guard_.require_updates();
    memory_saves_.look();
    signals.at_step(run_.step, saves_.saved_step());
    const Wishes wishes = wishes_of_all(run_.job, {.save = signals.take_save(),
                                                   .stop = signals.stop(),
                                                   .settle = saves_.asks_to_settle(),
                                                   .data = parts_.feed->failed()});
    if (wishes.data && run_.step < run_.total_steps) {
      keep_before_data_error();
      parts_.feed->require_data();
    }
    stopped = wishes.stop && run_.step < run_.total_steps;
    if (wishes.settle) saves_.settle();
    // A stop request may not leave time for an evaluation.
    if (!stopped) evaluations_.evaluate_in_turn();
    if (save_in_turn(wishes, stopped)) signals.at_step(run_.step, saves_.saved_step());
  }
  log::end_start();
  if (!stopped) signals.end_steps();
  finish(stopped);
  memory_saves_.remove();
  return stopped ? static_cast<int>(ExitCode::preempted) : 0;
}

int train(runtime::Session& session, const config::Resolved& config) {
  return Run(session, config).run();
}

}  // namespace octet::train
