// The optimizer steps of runs, probes and benchmarks. Only this file orders forward, backward and update, and
// looks up the learning rate.
#pragma once

#include <cstdint>
#include <functional>

#include "octet/device/op_threads.h"
#include "octet/feed/loader.h"
#include "octet/model/transformer.h"
#include "octet/optim/schedule.h"
#include "octet/store/store.h"
#include "octet/train/engine.h"

namespace octet::train {

/// Runs steps and counts them. All functions are collective.
class StepLoop {
 public:
  /// Returns this rank's next micro-batch, which may be empty. `first`: it is the first of a step.
  using NextBatch = std::function<runtime::HostBatch(bool first)>;

  /// `engine` and `schedule` must outlive the loop. A step has `accumulation` micro-batches per rank. `done`
  /// steps are already complete.
  StepLoop(Engine& engine, const optim::Schedule& schedule, std::int64_t accumulation, std::int64_t done = 0)
      : engine_(engine), schedule_(schedule), accumulation_(accumulation), done_(done) {}

  /// Runs one optimizer step at the scheduled learning rate. `may_update`, if given, is called after the last
  /// micro-batch. If it returns false, on all ranks, the step does not update and is not counted.
  store::StepResult take(const NextBatch& next, const std::function<bool()>& may_update = {});
  /// Like take(), but changes no parameter and counts no step. Returns loss and norm, and leaves the
  /// gradients in the store. `logits` gets the logits of label rows.
  store::StepResult look(const NextBatch& next, const model::LogitsHook& logits);
  /// Complete steps, including `done` of the constructor.
  std::int64_t done() const { return done_; }

 private:
  void pass(const NextBatch& next, const model::LogitsHook& logits);
  void pass_judged(const NextBatch& next, const model::LogitsHook& logits);
  void micro_batch(const runtime::HostBatch& batch, const model::LogitsHook& logits);

  Engine& engine_;
  const optim::Schedule& schedule_;
  std::int64_t accumulation_;
  std::int64_t done_;
  cpu::WaitingThreads waiting_;
};

}  // namespace octet::train
