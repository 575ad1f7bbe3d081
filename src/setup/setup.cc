#include "octet/setup/setup.h"

#include "octet/config/derive.h"
#include "octet/device/cpu.h"

namespace octet::setup {

SessionWish session_wish(const config::MachineKeys& config) {
  return {.device = device_wish(config.device),
          .carrying = {carrier_of(config.gpu_transport), sums_of(config)}};
}

DeviceWish device_wish(const std::string& word) {
  return wish_named(word);
}

comm::Carrier carrier_of(const std::string& transport) {
  if (transport == "peer") return comm::Carrier::peer;
  if (transport == "nccl") return comm::Carrier::nccl;
  return transport == "host" ? comm::Carrier::host : comm::Carrier::automatic;
}

comm::Sums sums_of(const config::MachineKeys& config) {
  const bool any_order = config.deterministic == "false" || config.deterministic == "auto";
  if (config.gpu_sums == "nccl") return comm::Sums::nccl;
  return config.gpu_sums == "auto" && any_order ? comm::Sums::automatic : comm::Sums::ordered;
}

comm::WatchOptions watch_options(const config::MachineKeys& config, const std::string& trace_folder) {
  return {.timeout_seconds = static_cast<double>(config.ddp_timeout), .trace_folder = trace_folder};
}

optim::ScheduleOptions schedule_options(const config::ScheduleKeys& config, std::int64_t total_steps) {
  return {.name = config.lr_scheduler_type,
          .learning_rate = config.learning_rate,
          .warmup_steps = config::warmup_steps(config, total_steps),
          .total_steps = total_steps,
          .arguments = config.lr_scheduler_kwargs};
}

int tokenising_threads(const config::DatasetKeys& config) {
  return static_cast<int>(config.preprocessing_num_workers.value_or(cpu::op_threads()));
}

bool refuses_long_rows(const config::SequenceKeys& config) {
  return config.truncation == "error";
}

}  // namespace octet::setup
