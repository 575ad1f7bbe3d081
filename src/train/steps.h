// The optimizer steps of runs, probes and benchmarks: one place where forward, backward and update follow
// each other and where the rate of a step is looked up.
#pragma once

#include <cstdint>
#include <functional>

#include "octet/device/shared_cores.h"
#include "octet/feed/loader.h"
#include "octet/model/transformer.h"
#include "octet/optim/schedule.h"
#include "octet/store/store.h"
#include "octet/train/engine.h"

namespace octet::train {

/// Takes steps and counts them. All ranks call its functions alike.
class StepLoop {
 public:
  /// Gives this rank's next micro-batch, which may be empty; `first`: it is the first of a step.
  using NextBatch = std::function<runtime::HostBatch(bool first)>;

  /// `engine` and `schedule` must outlive the loop. A step has `accumulation` micro-batches on each rank;
  /// `done` steps are behind.
  StepLoop(Engine& engine, const optim::Schedule& schedule, std::int64_t accumulation, std::int64_t done = 0)
      : engine_(engine), schedule_(schedule), accumulation_(accumulation), done_(done) {}

  /// One optimizer step at the rate that the schedule has for it. `may_update` is asked, where it is given,
  /// behind its last micro-batch: where it says no, on all ranks, nothing is updated and no step counted.
  store::StepResult take(const NextBatch& next, const std::function<bool()>& may_update = {});
  /// What a step would see: loss, norm and, left in the store, gradients. Changes no parameter and counts no
  /// step; `logits` sees those of the label rows.
  store::StepResult look(const NextBatch& next, const model::LogitsHook& logits);
  /// Steps taken, with those that were behind at the start.
  std::int64_t done() const { return done_; }

 private:
  void pass(const NextBatch& next, const model::LogitsHook& logits);
  void micro_batch(const runtime::HostBatch& batch, const model::LogitsHook& logits);

  Engine& engine_;
  const optim::Schedule& schedule_;
  std::int64_t accumulation_;
  std::int64_t done_;
  cpu::WaitingThreads waiting_;
};

}  // namespace octet::train
