// Detects silent bit errors: in memory, in messages between ranks, and in computations.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "faults/fault_verdict.h"
#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/train/engine.h"

namespace octet::train {

struct SilentFaultOptions {
  std::int64_t steps = 0;         ///< steps between checks; 0: none
  std::int64_t replay_steps = 0;  ///< steps between replays; 0: none
  std::uint64_t seed = 0;         ///< selects the replayed micro-batch and the ranks
};

/// The checks of a run (docs/checkpoints.md). A check of step n detects errors from the update of step n - 1
/// to the update of step n. It hashes the state of a rank after the first and before the second update, and
/// sends one message to the other ranks. All functions are collective, in the order of the steps.
class SilentFaults {
 public:
  /// Reserves memory in the engine's arena. Throws Error (usage) on all ranks if replays are configured and
  /// ranks have different processors or different numbers of threads.
  SilentFaults(Engine& engine, comm::Job& job, comm::Collectives& data, const SilentFaultOptions& options,
               bool strict);

  bool checks() const { return options_.steps > 0; }
  /// Called after the update of step `step`. `next`: check the next step regardless of its number, because it
  /// will be saved.
  void updated(std::int64_t step, bool next);
  /// Like updated(), after the state was loaded. Discards earlier findings.
  void loaded(std::int64_t step, bool next);
  /// Returns the index of the micro-batch of `step` to replay before `step`; -1: none.
  int replayed_in(std::int64_t step) const;
  /// Called before the first micro-batch of `step`. `own`: this rank's micro-batches of the step, if one is
  /// replayed.
  void begin(std::int64_t step, const std::vector<runtime::HostBatch>& own);
  /// Called after the last micro-batch of the step, before its update. Returns the faults on all ranks.
  std::vector<Fault> before_update();
  /// Like before_update(), for the current state before it is saved.
  std::vector<Fault> before_save();
  /// Checks without faults, and replays, in this process.
  std::int64_t agreed() const { return agreed_; }
  std::int64_t replays() const { return replays_; }

 private:
  void require_alike(bool strict) const;
  ops::Hash compute_again(const runtime::HostBatch& batch);
  /// Replays the micro-batch of the rank that is `shift` after this one.
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
  std::vector<std::string> batches_;  ///< of all ranks, serialized
  int replayed_ = -1;                 ///< index in the current step
  std::int64_t step_ = 0;             ///< the current step
  ops::Hash again_;
  std::int64_t agreed_ = 0, replays_ = 0;
};

}  // namespace octet::train
