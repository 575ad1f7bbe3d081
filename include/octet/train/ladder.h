// Suggests changes for a run that does not fit its device, cheapest first.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "octet/comm/job.h"
#include "octet/config/config.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/plan/memory.h"
#include "octet/runtime/instance.h"

namespace octet::train {

/// Returns the engine options if every sample has cutoff_len tokens, the worst case of any data.
runtime::InstanceOptions worst_options(const config::Config& config, const model::Architecture& architecture,
                                       const plan::Choice& choice, int world);

/// One suggested change, and the memory of a rank after it and all earlier changes.
struct Rung {
  std::string keys;
  std::size_t bytes = 0;       ///< device memory
  std::size_t moved = 0;       ///< bytes that this change moves from device memory to host memory
  std::size_t moved_host = 0;  ///< likewise, of all ranks of a host
};

/// The hardware for the run.
struct LadderOptions {
  comm::Place place;
  DeviceKind kind = kHostKind;
  std::size_t limit = 0;  ///< memory of a rank in bytes
  /// On GPUs: host memory in bytes for the ranks of a host; 0: unknown.
  std::size_t host = 0;
  /// Bytes of `host` that are used outside the engine; empty: none.
  std::function<std::size_t(const comm::Place& place)> outside = {};
  /// Returns the options of a run with known samples; empty: worst_options.
  std::function<runtime::InstanceOptions(const config::Config& config, const plan::Choice& choice, int world)>
      build = {};
};

/// Returns suggestions, up to the first that fits. The last may not fit either. The order is:
/// 1. smaller micro-batches with more accumulation
/// 2. shorter sequences
/// 3. on GPUs, optimizer state in host memory if it has room
/// 4. micro-batches of one sample
/// 5. recomputed activations
/// 6. sharded states, on more ranks if necessary
/// Each includes all earlier changes. Changes that are already configured or save no memory are omitted. The
/// samples per step stay constant, except with more ranks.
std::vector<Rung> ladder(const config::Config& config, const model::Architecture& architecture,
                         const LadderOptions& options);

/// Formats them as lines: "cutoff_len=2048: 61.2 GiB per rank, which fits"; "optim_state_cpu_offload=true:
/// 31.2 GiB per rank, which fits; 30.0 GiB move to the host's memory".
std::vector<std::string> ladder_lines(const std::vector<Rung>& rungs, std::size_t limit);

/// Formats them as the advice of an Error.
std::string ladder_advice(const std::vector<Rung>& rungs, std::size_t limit);

}  // namespace octet::train
