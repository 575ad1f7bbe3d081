// The setup room: fills the options of other rooms from the configuration, and does nothing else with them.
// This file has the small ones. The larger ones are in model_options.h and run_options.h.
// Only this room and config compare words of a configuration.
#pragma once

#include <cstdint>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/config/keys.h"
#include "octet/device/gpu_choice.h"
#include "octet/optim/schedule.h"

namespace octet::setup {

/// The arguments that open a Session.
struct SessionWish {
  DeviceWish device = DeviceWish::automatic;
  comm::Carrying carrying = {};
};
SessionWish session_wish(const config::MachineKeys& config);
/// The device for a value of the key `device`.
DeviceWish device_wish(const std::string& word);
/// The carrier for a value of the key gpu_transport.
comm::Carrier carrier_of(const std::string& transport);
/// What gpu_sums asks for: NCCL's own sums only where bits need not be the same everywhere.
comm::Sums sums_of(const config::MachineKeys& config);

/// The seconds without a message after which a collective counts as lost, and the file for the ranks'
/// reports.
comm::WatchOptions watch_options(const config::MachineKeys& config, const std::string& trace_folder);

/// The course of the learning rate in a run of `total_steps` optimizer steps.
optim::ScheduleOptions schedule_options(const config::ScheduleKeys& config, std::int64_t total_steps);

/// Threads that tokenise on this rank, of which the configuration may say nothing: then its cores.
int tokenising_threads(const config::DatasetKeys& config);
/// Whether a row that is longer than cutoff_len ends the run, and is not cut.
bool refuses_long_rows(const config::SequenceKeys& config);

}  // namespace octet::setup
