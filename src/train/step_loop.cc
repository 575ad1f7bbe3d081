#include "step_loop.h"

#include <cstdint>
#include <vector>

namespace octet::train {

void StepLoop::pass(const NextBatch& next, const model::LogitsHook& logits) {
  if (engine_.options().transformer.judgement) return pass_judged(next, logits);
  // Read before the step begins: an error can still be reported to all ranks.
  runtime::HostBatch batch = next(true);
  engine_.begin(static_cast<int>(accumulation_));
  micro_batch(batch, logits);
  for (std::int64_t i = 1; i < accumulation_; ++i) micro_batch(next(false), logits);
}

// The reference point is a mean over all micro-batches of the step.
void StepLoop::pass_judged(const NextBatch& next, const model::LogitsHook& logits) {
  std::vector<runtime::HostBatch> batches;
  for (std::int64_t i = 0; i < accumulation_; ++i) batches.push_back(next(i == 0));
  engine_.set_reference_point(
      accumulation_, [&](std::int64_t i) { return batches[static_cast<std::size_t>(i)].mismatched; });
  engine_.begin(static_cast<int>(accumulation_));
  for (const runtime::HostBatch& batch : batches) micro_batch(batch, logits);
}

void StepLoop::micro_batch(const runtime::HostBatch& batch, const model::LogitsHook& logits) {
  engine_.micro_batch(batch, logits);
  waiting_.look();
}

store::StepResult StepLoop::take(const NextBatch& next, const std::function<bool()>& may_update) {
  pass(next, {});
  const bool updates = !may_update || may_update();
  const store::StepResult result = engine_.finish(schedule_.learning_rate(done_), updates);
  done_ += updates ? 1 : 0;
  return result;
}

store::StepResult StepLoop::look(const NextBatch& next, const model::LogitsHook& logits) {
  pass(next, logits);
  return engine_.finish(0.0, false);
}

}  // namespace octet::train
