// What all objects of a run share: the ranks, the configuration, the position of the run, and the parts that
// it trains.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/config/derive.h"
#include "octet/data/template_encoder.h"
#include "octet/feed/corpus.h"
#include "octet/feed/feed.h"
#include "octet/feed/routing_file.h"
#include "octet/feed/teacher_file.h"
#include "octet/memory_tier/memory_tier.h"
#include "octet/model/architecture.h"
#include "octet/optim/schedule.h"
#include "octet/report/reporter.h"
#include "octet/runtime/session.h"
#include "octet/runtime/watchdog.h"
#include "octet/train/engine.h"
#include "saves/output_folder.h"

namespace octet::train {

struct RunContext {
  RunContext(runtime::Session& session_of_run, const config::Resolved& resolved_of_run)
      : session(session_of_run),
        resolved(resolved_of_run),
        config(resolved.config),
        job(session.job()),
        watchdog("rank " + std::to_string(job.rank()) + " on " + job.place().host) {}
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  runtime::Session& session;
  config::Resolved resolved;     ///< including choices of the run before its first step
  const config::Config& config;  ///< config of `resolved`
  comm::Job& job;
  runtime::Watchdog watchdog;
  std::unique_ptr<OutputFolder> folder;  ///< on the printing rank

  std::int64_t step = 0;  ///< complete steps
  std::int64_t total_steps = 0;
  std::int64_t samples_seen = 0;  ///< in all complete steps, over all ranks

  bool prints() const { return session.prints(); }
  /// Reports the current phase to the watchdog.
  void begins(const char* phase, double times = 1) { watchdog.enter(phase, phase_limit(times)); }
  /// Like begins(), for phases before the first step, which scale little with the time of a step.
  void begins_once(const char* phase, double times = 1) {
    watchdog.enter(phase, 120 + 1.5 * times * static_cast<double>(config.ddp_timeout));
  }
  /// Returns 10 s plus 1.5 times `times` x ddp_timeout. So ranks that wait for each other report first.
  double phase_limit(double times = 1) const {
    return 10 + 1.5 * times * static_cast<double>(config.ddp_timeout);
  }
};

// The parts that a run trains: the model, the data, the schedule and the engine.

/// Later parts use earlier parts, and are destroyed first.
struct RunParts {
  model::Architecture architecture;
  Json adapters;       ///< adapter_state()
  Json model_config;   ///< runtime::config_state()
  bool fresh = false;  ///< the run begins with random weights
  std::unique_ptr<data::TemplateEncoder> encoder;
  config::Batch batch;
  feed::Corpus corpus;
  std::unique_ptr<feed::Feed> feed;
  std::unique_ptr<feed::RoutingFile> routing;  ///< with moe_routing_file
  std::unique_ptr<feed::TeacherFile> teacher;  ///< with teacher_logprobs
  std::unique_ptr<optim::Schedule> schedule;
  std::optional<checkpoint::Checkpoint> checkpoint;  ///< the run resumes from it
  std::unique_ptr<Engine> engine;
  std::unique_ptr<memory_tier::MemoryTier> memory;  ///< if checkpoints are kept in memory
  std::unique_ptr<report::Reporter> reporter;       ///< on the printing rank
};

/// Returns the next micro-batch (Feed::next), with the experts of its tokens if they are given, and with the
/// tokens of the teacher.
inline runtime::HostBatch next_batch(RunParts& parts, bool first_of_step, double* waited) {
  runtime::HostBatch batch = parts.feed->next(first_of_step, waited);
  if (parts.routing) parts.routing->add_to(batch);
  if (parts.teacher) parts.teacher->add_to(batch);
  return batch;
}

}  // namespace octet::train
