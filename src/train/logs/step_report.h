// The logs of a step: times of messages, ranks, experts, casts, and the report of all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "faults/step_guard.h"
#include "octet/base/json.h"
#include "octet/comm/channel.h"
#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/model/transformer.h"
#include "octet/precision/quantizer.h"
#include "octet/report/reporter.h"
#include "octet/store/placement.h"
#include "octet/train/engine.h"
#include "run_context.h"

namespace octet::train {

// The load of experts over all ranks, and its fields in a log row.

/// Returns the summed loads of all ranks. Collective. All ranks pass loads of the same blocks.
model::ExpertLoads loads_of_all(comm::Channel& channel, const model::ExpertLoads& own);

/// Returns the field "experts" of a log row (docs/logging.md). Per block: the largest and smallest share of
/// rows, relative to an even share, and the entropy of the shares, 1 for an even load; and the share of rows
/// that were dropped.
Json expert_fields(const model::ExpertLoads& loads);

/// Finds experts that get no row in many steps.
class IdleExperts {
 public:
  /// Steps without a row until an expert is reported.
  static constexpr std::int64_t kSteps = 100;

  /// `loads`: the loads of all steps since the last call, up to `step`. Returns a warning with the experts
  /// that had no row in kSteps steps and were not reported before, or "".
  std::string look(std::int64_t step, const model::ExpertLoads& loads);

 private:
  struct Expert {
    std::int64_t seen = 0;  ///< the last step with a row, or the last step known to have one
    bool named = false;
  };
  std::map<std::int64_t, std::vector<Expert>> experts_;
  std::int64_t before_ = -1;  ///< the step of the last call, or the step before the first call
};

// Sums over pairs of answers, and their fields in a log row.

/// Returns the sums of the values of all ranks, in the order of ranks. Collective.
std::vector<double> sum_of_ranks(comm::Channel& channel, const std::vector<double>& own);

/// Returns the fields of a log row from sums over `labels` label rows, in the order of
/// ops::DistillationFigure. Empty without label rows.
std::vector<std::pair<std::string, double>> teacher_fields(const std::vector<double>& sums, double labels);

/// Returns the fields of a log row, with LLaMA-Factory's names ("rewards/chosen"), from sums in the order of
/// ops::PreferenceFigure. Empty without pairs.
std::vector<std::pair<std::string, double>> preference_fields(const std::vector<double>& sums,
                                                              const ops::PreferenceRule& rule);

/// Returns the fields of a log row from sums in the order of ops::JudgementFigure. Fields of a kind of
/// answers without answers are left out. `point`: the mean reference point.
std::vector<std::pair<std::string, double>> judgement_fields(const std::vector<double>& sums, double point);

// Facts of each rank, and their exchange for the log.

/// Returns the bytes in use. On a GPU: current use by all its processes; a run allocates its buffers once,
/// before its first step. On a CPU: peak use of this process.
std::int64_t memory_in_use(const Device& device);

/// Mean loss over steps, from the tokens that this rank trained in each.
class OwnLoss {
 public:
  /// Adds a step. Steps without label tokens are skipped.
  void add(const RankLoss& step);
  /// Null if no step had label tokens.
  std::optional<double> mean() const;

 private:
  double sum_ = 0;
  std::int64_t steps_ = 0;
};

/// Facts of one rank.
struct OwnFacts {
  std::optional<double> loss;
  std::int64_t reserved_bytes = 0;
  std::int64_t used_bytes = 0;
};

/// Facts of all ranks.
struct AllFacts {
  std::vector<std::optional<double>> losses;  ///< by rank
  std::int64_t reserved_bytes = 0;            ///< maximum over ranks
  std::int64_t used_bytes = 0;                ///< maximum over ranks
};

/// Collective. Returns the facts of all ranks on each rank.
AllFacts exchange_facts(comm::Channel& channel, const OwnFacts& own);

// Measures how long messages of a step are in flight, and how long the compute stream waits for them.

/// Seconds on this rank.
struct MessageTime {
  double under_way = 0;  ///< at least one collective was in flight; concurrent ones count once
  double exposed = 0;    ///< part of `under_way` in which `compute` was idle
};

/// Measures message times between calls of take(). Use it on the thread that enqueues on `compute`.
class StepWatch {
 public:
  /// `seconds_busy` returns the seconds during which collectives were under way so far.
  StepWatch(std::function<double()> seconds_busy, Stream& compute);

  /// Returns the times since construction or the last call. The compute stream also waits without messages:
  /// for threads to wake up, or for other streams. Such waiting is not communication, so `exposed` excludes
  /// waiting beyond the message time.
  MessageTime take();

 private:
  std::function<double()> seconds_busy_;
  Stream& compute_;
  double busy_, waited_;
};

// Statistics of casts to FP8 over all ranks, and their fields in a log row.

/// Returns the rows of all ranks, merged: counts are summed, amax is the largest (NaN if any is NaN), scale
/// is the smallest. Collective. All ranks pass rows with equal names in equal order. Rows of one name are
/// merged.
std::vector<precision::CastRow> casts_of_all(comm::Channel& channel,
                                             const std::vector<precision::CastRow>& own);

/// The two fields of a log row, by GEMM and operand (docs/logging.md). Names are "layers.N.PRODUCT/OPERAND";
/// a further part after another slash is ignored.
struct CastFields {
  Json worst;   ///< {"qkv": {"input": {"amax", "scale", "saturated", "lost", "layer"}, …}, …}
  Json layers;  ///< {"qkv": {"input": {"amax": [by layer], "scale": […], …}, …}, …}
};
CastFields cast_fields(const std::vector<precision::CastRow>& rows);

/// A complete step.
struct StepOutcome {
  store::StepResult result;
  double seconds = 0;
  double data_seconds = 0;  ///< seconds in which the step waited for data
  MessageTime messages;
  std::string spike;  ///< description of a spike, or ""
};

class StepReport {
 public:
  /// All must outlive the object.
  StepReport(RunContext& run, RunParts& parts, const StepGuard& guard)
      : run_(run), parts_(parts), guard_(guard) {}

  /// Prepares the report of the next step. Discards traffic of evaluations and checkpoints.
  void begin();
  /// Reports the current step. Collective.
  void report(const StepOutcome& outcome);
  /// Starts again after a return to an earlier step.
  void restart() {
    own_loss_ = {};
    own_figures_.clear();
    points_ = {};
  }

 private:
  /// Whether a step writes a log row.
  bool logs_at(std::int64_t step) const;
  /// Whether rows include casts to FP8.
  bool watches_casts() const;
  /// Adds the figures of answers of this rank. In a logged step, sets their fields. Collective.
  void add_answers(report::StepFacts& facts);
  /// Adds the figures of the label rows of this rank with a teacher, likewise.
  void add_taught(report::StepFacts& facts);

  RunContext& run_;
  RunParts& parts_;
  const StepGuard& guard_;
  OwnLoss own_loss_;                 ///< since the last log row
  std::vector<double> own_figures_;  ///< of answers or a teacher, since the last log row
  std::vector<double> points_;       ///< reference points, likewise
  IdleExperts idle_experts_;
};

}  // namespace octet::train
