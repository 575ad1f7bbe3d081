// What all objects of a run share: the ranks, the configuration, the watchdog, and the position of the run.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/runtime/session.h"
#include "octet/runtime/watchdog.h"
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

}  // namespace octet::train
