// Looks for bits that went wrong by themselves: in memory, on their way between ranks, in a computation.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fault_verdict.h"
#include "flips.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/train/engine.h"

namespace octet::train {

struct SilentFaultOptions {
  std::int64_t steps = 0;         ///< between checks; 0: none
  std::int64_t replay_steps = 0;  ///< between replays; 0: none
  std::uint64_t seed = 0;         ///< of what is replayed, and by whom
};

/// The checks of a run (docs/checkpoints.md). A check of step n sees what went wrong from the update of step
/// n - 1 to that of step n: it hashes what a rank holds behind the one and before the other, and tells the
/// other ranks in one message. All ranks call its functions alike, in the order of the steps.
class SilentFaults {
 public:
  /// Reserves its memory in the engine's arena. Throws Error (usage), on all ranks, where replays are asked
  /// for and ranks compute on processors of several kinds, or with different numbers of threads.
  SilentFaults(Engine& engine, comm::Job& job, comm::Collectives& data, const SilentFaultOptions& options,
               bool strict);

  bool checks() const { return options_.steps > 0; }
  /// The state is that behind the update of step `step`. `next`: the next step is checked whatever its number
  /// is, because it is saved.
  void updated(std::int64_t step, bool next);
  /// The same where it was loaded: what was found before is forgotten.
  void loaded(std::int64_t step, bool next);
  /// Which micro-batch of its step is replayed before `step`; -1: none.
  int replayed_in(std::int64_t step) const;
  /// Before the first micro-batch of `step`, whose micro-batches are `own` on this rank where one of them is
  /// replayed.
  void begin(std::int64_t step, const std::vector<runtime::HostBatch>& own);
  /// Behind the last micro-batch of the step that began, before its update: what went wrong, on all ranks.
  std::vector<Fault> before_update();
  /// The same of the state as it is, before it is saved.
  std::vector<Fault> before_save();
  /// Checks that agreed and replays, of this session.
  std::int64_t agreed() const { return agreed_; }
  std::int64_t replays() const { return replays_; }

 private:
  void require_alike(bool strict) const;
  ops::Hash compute_again(const runtime::HostBatch& batch);
  /// Computes the micro-batch of the rank that is `shift` behind this one.
  ops::Hash replay(int shift);
  int shift(int times) const;
  void seal(bool on);
  ops::Hash scales();
  void compare(const store::StateHashes& now, FaultReport& own) const;
  std::vector<FaultReport> exchange(const FaultReport& own);
  std::vector<Fault> judge_replays(const std::vector<FaultReport>& reports);

  Engine& engine_;
  comm::Job& job_;
  comm::Collectives& data_;
  SilentFaultOptions options_;
  store::Hashes hashes_;
  Flips flips_;
  std::optional<store::StateHashes> behind_update_;
  ops::Hash scales_behind_update_;
  std::vector<std::string> batches_;  ///< of all ranks, as bytes
  int replayed_ = -1;                 ///< of the step that began
  std::int64_t step_ = 0;             ///< that began
  ops::Hash again_;
  std::int64_t agreed_ = 0, replays_ = 0;
};

}  // namespace octet::train
