// The setup room: what the rooms are asked for, from the configuration. It fills their options and does
// nothing with them. Here are those that are small.
// The larger ones: engine_options (engine.h), encoder_options (corpus.h), levels_of (fit.h).
#pragma once

#include <cstdint>
#include <string>

#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/optim/schedule.h"

namespace octet::setup {

/// What a Session is opened with.
struct SessionWish {
  std::string device;     ///< auto, cpu or cuda
  std::string transport;  ///< as gpu_transport says
};
SessionWish session_wish(const config::Config& config);

/// After how many seconds without a message a collective counts as lost, and where the ranks say what they
/// did.
comm::WatchOptions watch_options(const config::Config& config);

/// The course of the learning rate in a run of `total_steps` optimizer steps.
optim::ScheduleOptions schedule_options(const config::Config& config, std::int64_t total_steps);

/// Threads that tokenise on this rank, of which the configuration may say nothing: then its cores.
int tokenising_threads(const config::Config& config);

}  // namespace octet::setup
