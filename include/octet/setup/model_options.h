// Options of the model of a run, from the configuration.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/plan/advice.h"
#include "octet/precision/scaling.h"
#include "octet/runtime/instance.h"

namespace octet::setup {

/// Precision of a run as the configuration asks for it. Throws Error for combinations that make no sense.
precision::Recipe recipe_of(const config::PrecisionKeys& config);

/// Sharding, precision, optimizer and recomputation of a run, for micro-batches of `max_tokens` tokens in
/// documents of at most `max_length`.
runtime::InstanceOptions instance_options(const config::Config& config,
                                          const model::Architecture& architecture, std::int64_t max_tokens,
                                          std::int64_t max_length, std::int64_t max_documents);

/// The levels among which the memory of the device decides. One level if the configuration sets all keys.
std::vector<plan::Level> levels_of(const config::ComputeKeys& config, DeviceKind kind);

}  // namespace octet::setup
