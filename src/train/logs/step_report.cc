#include "logs/step_report.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "logs/cast_log.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/config/derive.h"
#include "octet/setup/run_options.h"

namespace octet::train {

bool StepReport::logs_at(std::int64_t step) const {
  return report::is_logged(step, config::interval_steps(run_.config.logging_steps, run_.total_steps),
                           run_.config.logging_first_step, run_.total_steps);
}

bool StepReport::watches_casts() const {
  return setup::cast_log(run_.config) != setup::CastLog::none;
}

void StepReport::begin() {
  run_.session.take_traffic();
  const bool casts = watches_casts();
  parts_.engine->watch_casts(
      {.next = casts && logs_at(run_.step + 1), .after = casts && logs_at(run_.step + 2)});
}

void StepReport::report(const StepOutcome& outcome) {
  comm::Job& job = run_.job;
  Engine& engine = *parts_.engine;
  auto traffic = run_.session.take_traffic();
  std::ranges::move(engine.instance().take_traffic(), std::back_inserter(traffic));
  own_loss_.add(engine.own_loss());
  report::StepFacts facts;
  if (logs_at(run_.step)) {
    const AllFacts all =
        exchange_facts(job, {.loss = std::exchange(own_loss_, {}).mean(),
                             .reserved_bytes = static_cast<std::int64_t>(engine.arena().bytes()),
                             .used_bytes = memory_in_use(run_.session.device())});
    facts.rank_losses = all.losses;
    facts.memory_bytes = all.reserved_bytes;
    facts.memory_peak_bytes = all.used_bytes;
    if (watches_casts()) {
      CastFields fields = cast_fields(casts_of_all(job, engine.cast_rows()));
      facts.fp8 = std::move(fields.worst);
      if (setup::cast_log(run_.config) == setup::CastLog::layers) facts.fp8_layers = std::move(fields.layers);
    }
  }
  if (logs_at(run_.step) && parts_.architecture.experts.count > 0) {
    const model::ExpertLoads loads = loads_of_all(job, engine.core().take_expert_loads());
    facts.experts = expert_fields(loads);
    const std::string idle = idle_experts_.look(run_.step, loads);
    if (!idle.empty() && run_.prints()) log::warn("step " + std::to_string(run_.step) + ": " + idle);
  }
  if (!parts_.reporter) return;
  const store::StepResult& result = outcome.result;
  facts.step = run_.step;
  const feed::Feed::Step step = parts_.feed->step();
  facts.epoch = step.epoch;
  facts.loss = mean_loss(result);
  facts.grad_norm = result.grad_norm;
  facts.learning_rate = result.learning_rate;
  facts.seconds = outcome.seconds;
  facts.tokens = step.tokens;
  facts.samples = step.samples;
  facts.label_tokens = result.label_tokens;
  facts.skipped = was_skipped(result);
  facts.counts = guard_.counts();
  facts.data_seconds = outcome.data_seconds;
  facts.comm_seconds = outcome.messages.under_way;
  facts.comm_exposed_seconds = outcome.messages.exposed;
  if (job.size() > 1) {
    for (const auto& kind : traffic) {
      if (kind.calls > 0) facts.comm_kinds.push_back({kind.kind, kind.seconds, kind.bytes_sent});
    }
  }
  parts_.reporter->step(facts);
}

}  // namespace octet::train
