// A run of the trainer: what its preparation makes and its steps use.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "expert_log.h"
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
#include "output_folder.h"
#include "rank_log.h"
#include "sample_log.h"
#include "save_interval.h"
#include "saver.h"
#include "silent_faults.h"
#include "spikes.h"
#include "step_watch.h"
#include "steps.h"

namespace octet::train {

/// Steps in a row whose loss or gradient is not finite and that mean that the run is lost.
inline constexpr int kMostNotFinite = 5;

/// One run, from the first look at its configuration to its last line. prepare.cc fills the members, in the
/// order of prepare(); trainer.cc takes the steps.
class Run {
 public:
  Run(runtime::Session& session, const config::Resolved& resolved)
      : session_(session), resolved_(resolved), config_(resolved_.config), job_(session.job()) {}

  int run();

 private:
  void prepare();
  /// What the run does from now on. It may take `times` one and a half times ddp_timeout and ten seconds:
  /// ranks that wait for each other say so before.
  void begins(const char* phase, double times = 1) { watchdog_.enter(phase, phase_limit(times)); }
  double phase_limit(double times = 1) const {
    return 10 + 1.5 * times * static_cast<double>(config_.ddp_timeout);
  }
  /// The same before the first step, where little of what is done scales with a step's time.
  void begins_once(const char* phase, double times = 1) {
    watchdog_.enter(phase, 120 + 1.5 * times * static_cast<double>(config_.ddp_timeout));
  }
  void prepare_model();
  void prepare_data();
  /// Storage of states, micro-batch and level, where the configuration leaves them to the device's memory.
  void choose_sizes(const feed::Feed::Shape& sample);
  /// Takes the first of the memory choices that fits, else the storage that holds least, and logs it. Leaves
  /// in `candidates` the levels of recomputation that it allows.
  void choose_memory(Candidates& candidates, std::size_t limit);
  /// Says in what the checkpoint's run stored its states, where this one takes that over.
  void say_storage_of_checkpoint() const;
  /// Of a micro-batch's samples, each.
  feed::Feed::Shape sample_shape() const;
  /// As config::resolve_batch(), and within an epoch of the data.
  config::Batch batch_of(const config::Config& config, int world) const;
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
  /// Logs in what the states are stored if the configuration asks for less than fp32.
  void say_storage_asked() const;
  /// What the start was asked for and one would rarely mean, in at most ten lines.
  void say_doubts() const;
  /// How much of the optimizer's state lies in the host's memory.
  void say_state_of_host() const;
  /// Throws Error where the host has no room for it.
  void look_at_host_room(const runtime::InstanceOptions& options) const;
  /// What it will leave on the disk, in bytes.
  RunFiles files() const;
  /// Throws Error (storage) when the disk has no room for that.
  void require_disk() const;
  void prepare_schedule();
  /// Where the learning rate follows evaluations (plateau.cc): tells it the latest.
  void tell_schedule();
  /// Where the run that is gone on from was stopped in place of one: evaluates and tells it.
  void make_up_for_evaluation();
  /// What a checkpoint says of it, and going on from there.
  void add_plateau(Json& state) const;
  void take_over_plateau();
  /// save_async: auto.
  void choose_where_to_save();
  void prepare_engine();
  /// Opens the checkpoint to go on from.
  void open_checkpoint(const std::string& path);
  /// Goes on from one that is open.
  void open_checkpoint(checkpoint::Checkpoint&& checkpoint);
  /// Fills the engine from it. Returns what is wrong with its data, the same on all ranks; "" when it holds.
  std::string read_checkpoint();
  /// Opens the one before, whose place in the data and in the schedule is another one.
  void fall_back(const std::string& why);
  /// Parameters as a run begins with them.
  void begin_weights();

  // memory.cc
  /// Where checkpoints are kept in memory: the tier.
  void make_memory();
  /// Opens the newest checkpoint of memory and disk, where there is one.
  void open_start();
  /// Whether one is taken to memory behind a step.
  bool takes_memory(std::int64_t step) const;
  /// Throws Error (usage) where a host has no room for them.
  void require_memory_room();
  void take_to_memory();
  /// Says what became of one, once that is known.
  void look_at_memory();
  void told_of_memory(const std::optional<checkpoint::Taken>& taken);

  /// Where steps have another size than those of the checkpoint.
  void tell_batch() const;
  /// Prints notes on the configuration.
  void say_notes() const;
  StartFacts start_facts() const;
  void start_reporter();
  std::string training_log() const { return config_.output_dir + "/training.log"; }
  store::StepResult train_step();
  /// Whether a step makes a row of the log, and whether rows tell of casts to FP8.
  bool logs_at(std::int64_t step) const;
  bool watches_casts() const { return setup::cast_log(config_) != setup::CastLog::none; }
  /// Seconds of a step, and what of them went by with waiting.
  struct Waits {
    double seconds = 0, data_seconds = 0;
    MessageTime messages;
  };
  void report_step(const store::StepResult& result, const Waits& waits);
  /// Counts steps whose loss or gradient is not finite, and does with those that stand out, by what, as
  /// spike_action says. Throws Error after too many in a row.
  void guard(const store::StepResult& result, const std::string& spike);

  // checks.cc
  void make_checks();
  /// What the checkpoint says of spikes and rollbacks, and what one of now says.
  void take_over_checks();
  void add_checks(Json& state) const;
  /// Fields of the log's rows.
  std::vector<std::pair<std::string, std::int64_t>> check_counts() const;
  /// Whether a checkpoint follows a step, as far as that is known before.
  bool plans_save(std::int64_t step) const;
  /// Where to start again after bits went wrong, in words.
  std::string back_to() const;
  /// What a check has found: true for nothing. Throws Error where the run is to stop; else it is to go back.
  bool agreed(const std::vector<Fault>& faults, std::int64_t step);
  /// Checks the state before it is saved; false: the run is to go back.
  bool may_be_saved();

  // finite.cc; all ranks call them alike.
  /// Returns the name of a trained tensor that holds a value that is not finite, or "".
  std::string weight_not_finite();
  /// Returns the first such tensor of the base and of the adapters that are added to it, with its file, or
  /// "".
  std::string base_not_finite();
  /// Throws Error (usage) if a weight that the run begins with is not finite.
  void require_finite_base();
  /// Throws Error (no_valid_checkpoint) if a weight that was read from the checkpoint is not finite.
  void require_finite_checkpoint();
  /// Warns of such a tensor of the base at the first step whose loss or gradient is not finite.
  void look_at_base();
  /// Returns false if the run is to go back. Throws Error if a weight is not finite and the run is to stop.
  bool weights_are_finite();
  /// Throws Error if no step of the run has changed the weights.
  void require_updates();

  /// The step's micro-batches, where one of them is replayed first.
  std::vector<runtime::HostBatch> batches_ahead(double* waited);
  /// A step that stands out, by what: does what spike_action says.
  void stands_out(const std::string& what, bool was_used);
  /// Goes back to the newest checkpoint where a check or a step asked for it: true when it has.
  bool goes_back();
  /// Takes over what counts from the checkpoint that was read.
  void stand_at_checkpoint();
  /// Begins to take steps, or begins again.
  void start_steps();
  /// Saves a checkpoint of the steps that are done, before the run ends by an error of its data.
  void keep_before_data_error();
  /// With so many passes over the data behind.
  void evaluate(double epoch);
  /// Whether, with load_best_model_at_end, these weights are the best that were evaluated.
  bool is_best() const;
  /// The same of an earlier part of the run.
  void restore_best();
  /// Where eval_strategy and eval_steps say so.
  void evaluate_in_turn();
  bool evaluates_here() const;
  /// Folder of checkpoints that output_dir does not take; empty where there is none.
  std::string fallback() const;
  void make_saver();
  /// Makes a checkpoint of this step, or, with save_async, begins to.
  void save();
  /// The same, and what it costs tells when the next one is due, where that is left to it.
  void save_and_measure();
  /// take_to_memory(), and the same of it.
  void take_and_measure();
  /// Where the steps between checkpoints are left to what they cost.
  void make_intervals();
  /// All of it but the slices.
  checkpoint::CheckpointContents checkpoint_contents() const;
  void begin_save();
  /// Where a save is due while another one is in flight: that saves take longer than the steps between them.
  void tell_that_it_waits();
  /// Takes what became of the last save: waits for one beside the steps, or for the last checkpoint to have
  /// been read back.
  void settle_save();
  /// Saves, and once more where that fails. Throws Error (unsaved), on all ranks, when nothing takes it.
  void save_for_good();
  void finish(bool stopped);
  /// Returns the command that resumes a run that was stopped.
  std::string resuming_command() const;
  /// What one would do with a finished run.
  std::vector<std::string> next_commands() const;
  /// What a finished run leaves in its folder: a model, or adapters.
  void write_final_model();
  bool turn(double interval, setup::When when) const;

  runtime::Session& session_;
  config::Resolved resolved_;                   ///< with what the run chooses itself before its first step
  const config::Config& config_;                ///< its
  std::optional<config::Config> open_storage_;  ///< as it was, where it leaves storage to a checkpoint
  comm::Job& job_;
  runtime::Watchdog watchdog_{"rank " + std::to_string(job_.rank()) + " on " + job_.place().host};
  std::unique_ptr<OutputFolder> folder_;           ///< on the printing rank
  std::unique_ptr<comm::Channel> saves_;           ///< what ranks say to each other about checkpoints
  std::unique_ptr<SaveInterval> interval_;         ///< where save_steps is left to it
  std::unique_ptr<SaveInterval> memory_interval_;  ///< where memory_checkpoint_steps is

  model::Architecture architecture_;
  Json adapters_;      ///< as adapter_state()
  Json model_config_;  ///< as runtime::config_state()
  std::unique_ptr<data::TemplateEncoder> encoder_;
  config::Batch batch_;
  plan::Level level_;
  feed::Corpus corpus_;
  std::unique_ptr<feed::Feed> feed_;
  std::int64_t total_steps_ = 0;
  std::unique_ptr<optim::Schedule> schedule_;
  /// Whether a stop took the place of an evaluation that the learning rate was to follow.
  bool owes_evaluation_ = false;
  std::optional<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<checkpoint::MemoryTier> memory_;  ///< where checkpoints are kept in memory
  /// The newest checkpoint of the disk, where the run goes on from memory; step -1: none.
  struct OnDisk {
    std::int64_t step = -1;
    std::string path;
  } disk_start_;
  std::string from_;                            ///< what the run goes on from: as report::Progress says it
  std::unique_ptr<report::Reporter> reporter_;  ///< on the printing rank
  std::unique_ptr<Saver> saver_;        ///< reads the engine's snapshot, and syncs the log, until it goes
  std::unique_ptr<SampleLog> samples_;  ///< where it is asked for
  std::unique_ptr<StepLoop> loop_;
  std::int64_t step_ = 0;  ///< steps done, as loop_ counts them
  std::int64_t saved_step_ = -1;
  std::int64_t samples_seen_ = 0;  ///< in all steps done, over all ranks
  std::string last_checkpoint_;
  /// A checkpoint whose weights were evaluated, step -1: none.
  struct Evaluated {
    std::int64_t step = -1;
    double loss = 0;
    std::string path;
  };
  /// There is a new checkpoint; `best`: of the best weights so far, where they are.
  void saved(const Ended& ended, const Evaluated& best, double seconds);
  Evaluated taken_;  ///< of the save in flight: its step, and its loss where it is evaluated best so far
  bool takes_best_ = false;
  bool told_that_it_waits_ = false;
  Evaluated evaluated_;           ///< the latest; no path
  Evaluated lowest_;              ///< of all evaluations of this process; no path
  Evaluated best_, second_best_;  ///< of load_best_model_at_end
  OwnLoss own_loss_;              ///< since the last row of the log
  std::optional<Spikes> spikes_;
  std::unique_ptr<SilentFaults> faults_;  ///< where they are looked for
  /// Whether the run is to go back to a checkpoint, and whether it then leaves out the data that it took
  /// since.
  enum class Back { no, same_data, other_data } back_ = Back::no;
  std::int64_t rollbacks_ = 0;  ///< since the run began
  int rollbacks_in_a_row_ = 0;  ///< without a checkpoint in between
  IdleExperts idle_experts_;
  int not_finite_ = 0;  ///< steps in a row whose loss or gradient was not finite
  bool looked_at_base_ = false;
  std::string base_wrong_;  ///< as base_not_finite()
  bool fresh_ = false;      ///< begins with random weights
  std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  double gemm_rate_ = 0;  ///< FLOP/s of this rank; 0: not measured
};

}  // namespace octet::train
