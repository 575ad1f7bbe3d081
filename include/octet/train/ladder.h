// What to change in a run that does not fit its device, in the order in which it costs least.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/plan/advice.h"
#include "octet/runtime/instance.h"

namespace octet::train {

/// Engines of a run whose samples are all cutoff_len long, which is the worst that data can be.
runtime::InstanceOptions worst_options(const config::Config& config, const model::Architecture& architecture,
                                       const plan::Choice& choice, int world);

/// A change of the configuration, with what a rank holds after it and all changes before it.
struct Rung {
  std::string keys;
  std::size_t bytes = 0;       ///< of its device's memory
  std::size_t moved = 0;       ///< bytes that this change takes from there to the host's memory
  std::size_t moved_host = 0;  ///< by all ranks of a host
};

/// Where a run is to fit.
struct LadderOptions {
  comm::Place place;
  DeviceKind kind = DeviceKind::cpu;
  std::size_t limit = 0;  ///< bytes of a rank's memory
  /// On GPUs: bytes of the host's memory that its ranks can have; 0: nobody knows.
  std::size_t host = 0;
  /// Of these, what others than the engine take; empty: nothing.
  std::function<std::size_t(const comm::Place& place)> outside = {};
  /// Engines of a run whose samples are known; empty: worst_options.
  std::function<runtime::InstanceOptions(const config::Config& config, const plan::Choice& choice, int world)>
      build = {};
};

/// A smaller micro-batch in more of them, shorter sequences, on GPUs an optimizer's state in the host's
/// memory where that has room for it, micro-batches of one sample, activations that are computed again, and
/// states that ranks share out, on more ranks where those there are do not do. Each is tried with those
/// before it, up to the first that fits; the last one may not fit either. What a configuration already says
/// is left out, and so is what makes nothing smaller. Samples of a step stay as many as they are, but with
/// more ranks.
std::vector<Rung> ladder(const config::Config& config, const model::Architecture& architecture,
                         const LadderOptions& options);

/// As lines: "cutoff_len=2048: 61.2 GiB per rank, which fits"; "optim_state_cpu_offload=true: 31.2 GiB per
/// rank, which fits; 30.0 GiB move to the host's memory".
std::vector<std::string> ladder_lines(const std::vector<Rung>& rungs, std::size_t limit);

/// The same as what an Error tells to do.
std::string ladder_advice(const std::vector<Rung>& rungs, std::size_t limit);

}  // namespace octet::train
