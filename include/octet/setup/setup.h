// The setup room: what the rooms are asked for, from the configuration. It fills their options and does
// nothing with them. Here are those that are small.
// The larger ones: model_options.h, data_options.h, run_options.h. Nothing beside this room and config
// compares the words of a configuration.
#pragma once

#include <cstdint>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/device/gpu_choice.h"
#include "octet/optim/schedule.h"

namespace octet::setup {

/// What a Session is opened with.
struct SessionWish {
  DeviceWish device = DeviceWish::automatic;
  comm::Carrying carrying = {};
};
SessionWish session_wish(const config::Config& config);
/// What a word of `device` asks for.
DeviceWish device_wish(const std::string& word);
/// What a word of gpu_transport asks for.
comm::Carrier carrier_of(const std::string& transport);
/// What gpu_sums asks for: NCCL's own sums only where bits need not be the same everywhere.
comm::Sums sums_of(const config::Config& config);

/// After how many seconds without a message a collective counts as lost, and where the ranks say what they
/// did.
comm::WatchOptions watch_options(const config::Config& config);

/// The course of the learning rate in a run of `total_steps` optimizer steps.
optim::ScheduleOptions schedule_options(const config::Config& config, std::int64_t total_steps);

/// Threads that tokenise on this rank, of which the configuration may say nothing: then its cores.
int tokenising_threads(const config::Config& config);
/// Whether a row that is longer than cutoff_len ends the run, and is not cut.
bool refuses_long_rows(const config::Config& config);

}  // namespace octet::setup
