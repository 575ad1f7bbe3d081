#include "train_steps.h"

#include <utility>
#include <vector>

#include "octet/base/clock.h"
#include "octet/base/json.h"
#include "octet/base/log_start.h"

namespace octet::train {

void TrainSteps::stand_at_checkpoint() {
  const checkpoint::Checkpoint& from = *parts_.checkpoint;
  run_.step = from.step();
  run_.samples_seen = json_int(from.state(), "samples_seen", 0, 0, INT64_C(1) << 60, from.path());
}

bool TrainSteps::plans_save(std::int64_t step) const {
  return step == run_.total_steps || memory_.takes(step) || saves_.plans(step);
}

void TrainSteps::start() {
  const config::Batch& batch = parts_.batch;
  run_.job.together([&] {
    parts_.feed->start({.micro = batch.micro,
                        .accumulation = batch.passes,
                        .rank = run_.job.rank(),
                        .world = run_.job.size()});
  });
  samples_.reset();
  if (run_.config.log_samples)
    samples_ = std::make_unique<SampleLog>(run_.job, run_.config.output_dir, run_.step);
  loop_ = std::make_unique<StepLoop>(*parts_.engine, *parts_.schedule, batch.passes, run_.step);
  guard_.loaded(plans_save(run_.step + 1));
  report_.restart();
}

void TrainSteps::take() {
  run_.begins("a step");
  const auto start = Clock::now();
  StepOutcome outcome;
  report_.begin();
  parts_.engine->store().limit_steps(guard_.limits_of_update());
  StepWatch watch(run_.session.data(), parts_.engine->compute());
  std::vector<runtime::HostBatch> ahead = guard_.batches_ahead(&outcome.data_seconds);
  std::size_t given = 0;
  const auto next = [&](bool first) {
    runtime::HostBatch batch =
        given < ahead.size() ? std::move(ahead[given++]) : next_batch(parts_, first, &outcome.data_seconds);
    if (samples_) samples_->add(batch);
    return batch;
  };
  outcome.result = loop_->take(next, guard_.check_of_update());
  if (guard_.wants_back()) return;
  run_.step = loop_->done();
  guard_.updated(plans_save(run_.step + 1));
  run_.samples_seen += parts_.feed->step().samples;
  if (samples_) samples_->end_step(run_.step);
  outcome.seconds = seconds_since(start);
  saves_.stepped(outcome.seconds);
  memory_.stepped(outcome.seconds);
  outcome.messages = watch.take();
  outcome.spike = guard_.look(outcome.result);
  log::end_start();
  report_.report(outcome);
  parts_.engine->instance().check_gemms();
  guard_.judge(outcome.result, outcome.spike);
}

}  // namespace octet::train
