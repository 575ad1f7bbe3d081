// report: the output of a run for people: banner, progress bar, log lines, trainer_log.jsonl,
// trainer_state.json, TensorBoard, plots, results, summary, model card.
//
// A Reporter exists only on the printing rank. It does not depend on ranks, devices or models: the training
// loop passes facts to it. trainer_log.jsonl is the source of the history: a resumed run reads it and drops
// rows after the resumed step, so no row appears twice. All files except the two logs are written atomically.
// Lines for people go through octet::log. Names, tags and fields equal the names of Hugging Face and
// LLaMA-Factory.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/json_fwd.h"

namespace octet::report {

/// Facts that are known before the first step.
struct RunFacts {
  std::string output_dir;
  std::string run_name;
  std::string logging_dir;  ///< "" for output_dir/runs/DATE_HOST
  bool tensorboard = false;
  bool plot = false;

  std::int64_t examples = 0;
  double epochs = 1;
  std::int64_t total_steps = 0;
  std::int64_t first_step = 0;  ///< optimizer steps already done: 0, or the step of the resumed checkpoint
  std::string resumed_from;     ///< source of that checkpoint: see Progress::from
  std::int64_t micro_batch = 1;
  std::int64_t accumulation = 1;
  std::int64_t world = 1;
  std::int64_t trainable_parameters = 0;
  std::int64_t all_parameters = 0;

  std::int64_t logging_steps = 1;
  bool logging_first_step = false;
  std::int64_t save_steps = 0;
  std::int64_t eval_steps = 0;

  double flops_per_token = 0;    ///< number.h; 0 leaves TFLOP/s and MFU out
  double peak_flops = 989.4e12;  ///< of one device; 0: unknown, and no MFU is reported
  double gpu_hour_price = 0;     ///< of one device; 0 leaves the cost out
  double setup_seconds = 0;      ///< before the first step of this session; part of the cost
  /// Result of state() in the resumed checkpoint. Null: trainer_state.json of the folder is read.
  JsonMember resumed;
  /// Rows of the table that is printed before the first step. Figures of Hugging Face's banner are
  /// written to training.log only.
  std::vector<std::pair<std::string, std::string>> about;
  bool lines_of_hugging_face = true;  ///< also print the lines that other tools parse
  std::string base_model;             ///< for the model card
  std::vector<std::string> datasets;
  std::vector<std::pair<std::string, std::string>> hyperparameters;  ///< rows of the model card
};

/// Collectives of one kind in a step.
struct KindOfMessages {
  std::string kind;  ///< "reduce_scatter", …
  double seconds = 0;
  std::int64_t bytes = 0;  ///< sent
};

/// One optimizer step, over all ranks.
struct StepFacts {
  std::int64_t step = 0;  ///< 1 for the first
  double epoch = 0;
  double loss = 0;
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  double seconds = 0;             ///< wall time of the step
  std::int64_t tokens = 0;        ///< tokens that the model computed
  std::int64_t label_tokens = 0;  ///< trained tokens
  std::int64_t samples = 0;
  bool skipped = false;  ///< no update, because of a non-finite gradient or a spike
  std::vector<std::pair<std::string, std::int64_t>> counts;  ///< more fields of the row: "spikes", 2
  double data_seconds = 0;                                   ///< seconds in which the step waited for data
  double comm_seconds = 0;                                   ///< seconds with messages in flight
  double comm_exposed_seconds = 0;         ///< part of comm_seconds in which compute waited for messages
  std::vector<KindOfMessages> comm_kinds;  ///< messages that this rank sent; empty for a single rank
  // Only for steps that write a row.
  std::int64_t memory_bytes = 0;       ///< reserved by the trainer, largest rank
  std::int64_t memory_peak_bytes = 0;  ///< used on the device or by the process, largest rank
  /// rank{r}/loss: loss of each rank's tokens since the last row; null for a rank without trained tokens.
  std::vector<std::optional<double>> rank_losses;
  /// Fields "fp8" and "fp8_layers" of the row. Null: the field is omitted.
  JsonMember fp8, fp8_layers;
  /// The load of experts: the field "experts" of the row. Null: the field is omitted.
  JsonMember experts;
  std::vector<std::pair<std::string, double>> extra;  ///< more fields of the row: "rewards/chosen", 0.3
};

struct EvalFacts {
  std::int64_t step = 0;
  double epoch = 0;
  double loss = 0;
  double seconds = 0;
  std::int64_t samples = 0;
  std::int64_t batches = 0;
  bool perplexity = false;  ///< also report exp(loss)
  JsonMember experts;       ///< the load of experts: the field "eval_experts"; null: omitted
  /// More fields of the row, which begin with "eval_" there: "accuracy", 0.7.
  std::vector<std::pair<std::string, double>> extra = {};

  /// Returns `count` divided by the seconds of the evaluation, or 0 without time.
  double per_second(std::int64_t count) const {
    return seconds > 0 ? static_cast<double>(count) / seconds : 0.0;
  }
};

struct FinishFacts {
  std::string status = "completed";  ///< or "stopped", …
  std::string final_model;           ///< checkpoint or folder; "" leaves the line out
  std::int64_t model_step = -1;      ///< of final_model, if it is a checkpoint before the last; else -1
  bool keeps_checkpoint = true;      ///< false: the last checkpoint was removed, so the summary omits it
  std::vector<std::string> next;     ///< lines on what to try next
};

/// Whether a step is logged: its number is a multiple of `every`, it is the last step, or it is the first
/// step and `with_first` is true.
bool is_logged(std::int64_t step, std::int64_t every, bool with_first, std::int64_t total);

/// Not thread-safe: only the thread of the loop calls it.
class Reporter {
 public:
  /// Opens the logs of output_dir, which is created if missing. If first_step > 0, keeps the history up to
  /// this step. Otherwise replaces earlier logs. Throws Error if the folder or a log cannot be written.
  explicit Reporter(RunFacts facts);
  ~Reporter();
  Reporter(const Reporter&) = delete;
  Reporter& operator=(const Reporter&) = delete;

  /// Returns the rows that the banner takes on a screen of 80 columns.
  int start_rows() const;
  /// Prints the banner and draws the bar.
  void start();
  /// Records a step. Writes a row if logging_steps requires it, for the first step (logging_first_step), and
  /// for the last step.
  void step(const StepFacts& facts);
  void evaluation(const EvalFacts& facts);
  /// Reports that a copy of the state took `seconds` between two steps. The next steps overlap with its save.
  void waited(double seconds);
  /// Reports a checkpoint of `step` on disk, which took `seconds`. Writes trainer_state.json and the plots.
  void saved(std::int64_t step, const std::string& path, double seconds = 0);
  /// Blocks until the rows of the log so far would survive a loss of power. Call it before a checkpoint
  /// becomes valid, because a run that resumes from this checkpoint does not write these rows again. Any
  /// thread may call it.
  void sync_log() const;
  /// Reports a checkpoint of `step` in the memory of the hosts.
  void in_memory(std::int64_t step);
  /// Reports a failed save, which took `seconds`. Rows and summary count it.
  void save_failed(double seconds);
  /// Ends the bar; writes results, state, plots, model card; prints the summary.
  void finish(const FinishFacts& facts);

  /// The current trainer_state.json (Hugging Face's fields) for a checkpoint, without log_history, which is
  /// in trainer_log.jsonl.
  Json state() const;
  /// True when step() would log this step.
  bool logs_at(std::int64_t step) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace octet::report
