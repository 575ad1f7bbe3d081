// One run of the trainer: its preparation and its steps.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "faults/silent_faults.h"
#include "faults/spikes.h"
#include "logs/expert_log.h"
#include "logs/rank_log.h"
#include "logs/sample_log.h"
#include "logs/step_watch.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/memory.h"
#include "octet/config/derive.h"
#include "octet/data/template_encoder.h"
#include "octet/feed/corpus.h"
#include "octet/feed/feed.h"
#include "octet/optim/schedule.h"
#include "octet/plan/advice.h"
#include "octet/report/reporter.h"
#include "octet/runtime/session.h"
#include "octet/runtime/watchdog.h"
#include "octet/setup/run_options.h"
#include "octet/train/disk.h"
#include "octet/train/engine.h"
#include "octet/train/fit.h"
#include "octet/train/start_rows.h"
#include "saves/output_folder.h"
#include "saves/save_interval.h"
#include "saves/saver.h"
#include "steps.h"

namespace octet::train {

/// Consecutive steps with a loss or gradient that is not finite, after which the run fails.
inline constexpr int kMostNotFinite = 5;

/// One run, from reading its configuration to its last line. prepare.cc sets the members, in the order of
/// prepare(); trainer.cc runs the steps.
class Run {
 public:
  Run(runtime::Session& session, const config::Resolved& resolved)
      : session_(session), resolved_(resolved), config_(resolved_.config), job_(session.job()) {}

  int run();

 private:
  void prepare();
  /// Reports the current phase to the watchdog. The limit is 10 s plus 1.5 times `times` x ddp_timeout,
  /// because ranks that wait for each other report first.
  void begins(const char* phase, double times = 1) { watchdog_.enter(phase, phase_limit(times)); }
  double phase_limit(double times = 1) const {
    return 10 + 1.5 * times * static_cast<double>(config_.ddp_timeout);
  }
  /// Like begins(), for phases before the first step, which scale little with the time of a step.
  void begins_once(const char* phase, double times = 1) {
    watchdog_.enter(phase, 120 + 1.5 * times * static_cast<double>(config_.ddp_timeout));
  }
  void prepare_model();
  void prepare_data();
  /// Chooses the storage of states, the micro-batch and the recomputation level that the configuration leaves
  /// open, by device memory.
  void choose_sizes(const feed::Feed::Shape& sample);
  /// Chooses and logs the first memory choice that fits, or the smallest. Stores its allowed recomputation
  /// levels in `candidates`.
  void choose_memory(Candidates& candidates, std::size_t limit);
  /// Logs the storage formats of the checkpoint's run if this run adopts them.
  void say_storage_of_checkpoint() const;
  /// Shape of one sample of a micro-batch.
  feed::Feed::Shape sample_shape() const;
  /// Like config::resolve_batch(), limited to an epoch of the data.
  config::Batch batch_of(const config::Config& config, int world) const;
  /// Limits the micro-batches of a step to an epoch, if the length of an epoch is known.
  config::Batch within_epoch(const config::Batch& batch) const;
  /// Warns if a step has more samples than an epoch.
  void say_batch() const;
  std::string memory_advice(const feed::Feed::Shape& sample, std::size_t limit) const;
  void build_engine(const runtime::InstanceOptions& options);
  runtime::InstanceOptions engine_of(const config::Config& config, const plan::Choice& choice,
                                     const feed::Feed::Shape& sample, int world) const;
  runtime::InstanceOptions engine_for(const plan::Choice& choice, const feed::Feed::Shape& sample) const;
  /// Logs the FP8 core, the formats of all GEMMs, and a warning if FP8 costs more than it saves on this
  /// device.
  void say_fp8() const;
  /// Logs the storage formats of the states if the configuration sets less than fp32.
  void say_storage_asked() const;
  /// Warns of settings that are rarely intended.
  void say_doubts() const;
  /// Logs how much optimizer state is stored in host memory.
  void say_state_of_host() const;
  /// Throws Error if the host has no room for that state.
  void look_at_host_room(const runtime::InstanceOptions& options) const;
  /// Returns the sizes of the files that the run writes.
  RunFiles files() const;
  /// Throws Error (storage) if the disk has no room for these files.
  void require_disk() const;
  void prepare_schedule();
  /// Gives the latest evaluation to the schedule if the learning rate follows evaluations (plateau.cc).
  void tell_schedule();
  /// If the resumed run stopped before an evaluation, evaluates now and gives the result to the schedule.
  void make_up_for_evaluation();
  /// Saves and restores the state of the plateau schedule in a checkpoint.
  void add_plateau(Json& state) const;
  void take_over_plateau();
  /// Resolves save_async: auto.
  void choose_where_to_save();
  void prepare_engine();
  /// Opens the checkpoint to resume from.
  void open_checkpoint(const std::string& path);
  /// Resumes from an open checkpoint.
  void open_checkpoint(checkpoint::Checkpoint&& checkpoint);
  /// Loads the engine from the checkpoint. Returns a description of damage, equal on all ranks, or "".
  std::string read_checkpoint();
  /// Opens the previous checkpoint, which has another position in the data and the schedule.
  void fall_back(const std::string& why);
  /// Sets the initial parameters of a run.
  void begin_weights();

  // memory.cc
  /// Creates the tier for checkpoints in memory, if configured.
  void make_memory();
  /// Opens the newest checkpoint in memory or on disk, if any.
  void open_start();
  /// Whether a checkpoint is taken to memory after a step.
  bool takes_memory(std::int64_t step) const;
  /// Throws Error (usage) if a host has no room for checkpoints in memory.
  void require_memory_room();
  void take_to_memory();
  /// Logs the result of a checkpoint in memory once it is known.
  void look_at_memory();
  void told_of_memory(const std::optional<checkpoint::Taken>& taken);

  /// Warns if the samples per step differ from the run of the checkpoint.
  void tell_batch() const;
  /// Prints notes on the configuration.
  void say_notes() const;
  /// Prints the lines for SFT-Play and the banner.
  void say_tables(const std::vector<std::string>& start_lines) const;
  StartFacts start_facts() const;
  void start_reporter();
  std::string training_log() const { return config_.output_dir + "/training.log"; }
  store::StepResult train_step();
  /// logs_at(): whether a step writes a log row. watches_casts(): whether rows include casts to FP8.
  bool logs_at(std::int64_t step) const;
  bool watches_casts() const { return setup::cast_log(config_) != setup::CastLog::none; }
  /// Time of a step, and the waiting in it.
  struct Waits {
    double seconds = 0, data_seconds = 0;
    MessageTime messages;
  };
  void report_step(const store::StepResult& result, const Waits& waits);
  /// Counts steps with a loss or gradient that is not finite. Applies spike_action to spikes; `spike`
  /// describes one. Throws Error after too many steps in a row.
  void guard(const store::StepResult& result, const std::string& spike);

  // checks.cc
  void make_checks();
  /// Restores and saves the state of spikes and rollbacks in a checkpoint.
  void take_over_checks();
  void add_checks(Json& state) const;
  /// Returns fields for log rows.
  std::vector<std::pair<std::string, std::int64_t>> check_counts() const;
  /// Whether a checkpoint follows a step, as far as it is known in advance.
  bool plans_save(std::int64_t step) const;
  /// Returns advice on where to restart after a bit error.
  std::string back_to() const;
  /// Handles the faults of a check; returns true if there are none. Otherwise throws Error if the run must
  /// stop, or requests a rollback.
  bool agreed(const std::vector<Fault>& faults, std::int64_t step);
  /// Checks the state before it is saved. Returns false if the run must roll back.
  bool may_be_saved();

  // finite.cc; all are collective.
  /// Returns the name of a trained tensor that holds a value that is not finite, or "".
  std::string weight_not_finite();
  /// Returns the first such tensor of the base and of its merged adapters, with its file, or "".
  std::string base_not_finite();
  /// Throws Error (usage) if a weight that the run begins with is not finite.
  void require_finite_base();
  /// Throws Error (no_valid_checkpoint) if a weight that was read from the checkpoint is not finite.
  void require_finite_checkpoint();
  /// Warns of such a tensor of the base at the first step with a loss or gradient that is not finite.
  void look_at_base();
  /// Returns false if the run must roll back. Throws Error if a weight is not finite and the run must stop.
  bool weights_are_finite();
  /// Throws Error if no step of the run has changed the weights.
  void require_updates();

  /// Reads the micro-batches of the step in advance if one of them is replayed.
  std::vector<runtime::HostBatch> batches_ahead(double* waited);
  /// Applies spike_action to a step that is an outlier. `what` describes it.
  void stands_out(const std::string& what, bool was_used);
  /// Rolls back to the newest checkpoint if a check or a step requested it. Returns whether it did.
  bool goes_back();
  /// Restores counters from the checkpoint that was read.
  void stand_at_checkpoint();
  /// Starts or restarts the step loop.
  void start_steps();
  /// Saves a checkpoint of the complete steps before an error of the data ends the run.
  void keep_before_data_error();
  /// Evaluates. `epoch`: passes over the data so far.
  void evaluate(double epoch);
  /// Whether, with load_best_model_at_end, the current weights have the best evaluation.
  bool is_best() const;
  /// Restores the best evaluation of an earlier part of the run.
  void restore_best();
  /// Evaluates if eval_strategy and eval_steps require it.
  void evaluate_in_turn();
  bool evaluates_here() const;
  /// Returns the folder for checkpoints that do not fit in output_dir, or "".
  std::string fallback() const;
  void make_saver();
  /// Saves a checkpoint of this step. With save_async, starts to.
  void save();
  /// Like save(). If save_steps is automatic, the cost sets the next save.
  void save_and_measure();
  /// Like save_and_measure(), for take_to_memory().
  void take_and_measure();
  /// Creates the automatic save intervals, if configured.
  void make_intervals();
  /// Returns the contents of a checkpoint without the slices.
  checkpoint::CheckpointContents checkpoint_contents() const;
  void begin_save();
  /// Warns if a save is due while another is in flight: saves take longer than the steps between them.
  void tell_that_it_waits();
  /// Handles the result of the last save. Waits for a concurrent save, or until the last checkpoint was read
  /// back.
  void settle_save();
  /// Saves, and retries once. Throws Error (unsaved) on all ranks if both folders fail.
  void save_for_good();
  void finish(bool stopped);
  /// Returns the command that resumes a run that was stopped.
  std::string resuming_command() const;
  /// Returns suggested commands for a finished run.
  std::vector<std::string> next_commands() const;
  /// Writes the final model or adapters.
  void write_final_model();
  bool turn(double interval, setup::When when) const;

  runtime::Session& session_;
  config::Resolved resolved_;                   ///< including choices of the run before its first step
  const config::Config& config_;                ///< config of resolved_
  std::optional<config::Config> open_storage_;  ///< the original, if its storage follows a checkpoint
  comm::Job& job_;
  runtime::Watchdog watchdog_{"rank " + std::to_string(job_.rank()) + " on " + job_.place().host};
  std::unique_ptr<OutputFolder> folder_;           ///< on the printing rank
  std::unique_ptr<comm::Channel> saves_;           ///< host-side channel for checkpoints
  std::unique_ptr<SaveInterval> interval_;         ///< if save_steps is automatic
  std::unique_ptr<SaveInterval> memory_interval_;  ///< if memory_checkpoint_steps is automatic

  model::Architecture architecture_;
  Json adapters_;      ///< adapter_state()
  Json model_config_;  ///< runtime::config_state()
  std::unique_ptr<data::TemplateEncoder> encoder_;
  config::Batch batch_;
  plan::Level level_;
  feed::Corpus corpus_;
  std::unique_ptr<feed::Feed> feed_;
  std::int64_t total_steps_ = 0;
  std::unique_ptr<optim::Schedule> schedule_;
  /// Whether the resumed run stopped before an evaluation that sets the learning rate.
  bool owes_evaluation_ = false;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<checkpoint::MemoryTier> memory_;  ///< if checkpoints are kept in memory
  /// The newest checkpoint on disk if the run resumes from memory; step -1: none.
  struct OnDisk {
    std::int64_t step = -1;
    std::string path;
  } disk_start_;
  std::string from_;                            ///< the start of the run, in words of report::Progress
  std::unique_ptr<report::Reporter> reporter_;  ///< on the printing rank
  std::unique_ptr<Saver> saver_;  ///< reads the engine's snapshot and syncs the log until it is destroyed
  std::unique_ptr<SampleLog> samples_;  ///< if configured
  std::unique_ptr<StepLoop> loop_;
  std::int64_t step_ = 0;  ///< complete steps, from loop_
  std::int64_t saved_step_ = -1;
  std::int64_t samples_seen_ = 0;  ///< in all complete steps, over all ranks
  std::string last_checkpoint_;
  /// A checkpoint with evaluated weights; step -1: none.
  struct Evaluated {
    std::int64_t step = -1;
    double loss = 0;
    std::string path;
  };
  /// Records a new checkpoint. `best`: set if it has the best weights so far.
  void saved(const Ended& ended, const Evaluated& best, double seconds);
  Evaluated taken_;  ///< of the save in flight: its step, and its loss if it is the best so far
  bool takes_best_ = false;
  bool told_that_it_waits_ = false;
  Evaluated evaluated_;           ///< the latest; without path
  Evaluated lowest_;              ///< of all evaluations of this process; without path
  Evaluated best_, second_best_;  ///< for load_best_model_at_end
  OwnLoss own_loss_;              ///< since the last log row
  std::optional<Spikes> spikes_;
  std::unique_ptr<SilentFaults> faults_;  ///< if bit errors are checked
  /// Whether the run must roll back to a checkpoint, and whether it then skips the data since that
  /// checkpoint.
  enum class Back { no, same_data, other_data } back_ = Back::no;
  std::int64_t rollbacks_ = 0;  ///< since the run began
  int rollbacks_in_a_row_ = 0;  ///< without a checkpoint in between
  IdleExperts idle_experts_;
  int not_finite_ = 0;  ///< consecutive steps with a loss or gradient that was not finite
  bool looked_at_base_ = false;
  std::string base_wrong_;  ///< result of base_not_finite()
  bool fresh_ = false;      ///< the run begins with random weights
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double gemm_rate_ = 0;  ///< FLOP/s of this rank; 0: not measured
};

}  // namespace octet::train
