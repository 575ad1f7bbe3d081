// The target of a plan: a machine, and a model that is named by its shape.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/config/config.h"
#include "octet/device/device.h"
#include "octet/plan/time.h"

namespace octet::planner {

/// The hardware of a plan.
struct PlanTarget {
  DeviceKind kind = kHostKind;
  std::string name;
  std::string card;   ///< key of the card, if its figures are known; "": a GPU gets the figures of an H200
  plan::Rates rates;  ///< of a GPU
  std::size_t memory = 0;  ///< of the device; on CPUs a rank's share of the node's memory
  comm::Place place;
  const DeviceTraits& traits() const { return traits_of(kind); }
};

/// The requested hardware.
struct TargetWish {
  std::int64_t world = 1;
  std::int64_t ranks_per_node = 0;  ///< 0: up to eight
  std::string card;                 ///< "": the card of this machine, or else an H200
  std::string memory;               ///< of a device, like "141GB"; "": all of it
  int replica = 1;                  ///< ranks of one replica with split layers, all on one node
};

/// Returns the hardware that a configuration would run on. On CPUs it claims the cores of one rank, because
/// the scratch memory of ops depends on them. Throws Error (usage) for a card with device=cpu, an unknown
/// card or an invalid memory.
PlanTarget target_of(const config::Config& config, const TargetWish& wish);

// Overrides for the shape of a model without a configuration.

/// Returns overrides for a model without a configuration: adds bf16=true unless bf16 or pure_bf16 is set.
/// This precedes loading, because other keys require bf16.
std::vector<std::string> with_bf16(std::vector<std::string> words);

}  // namespace octet::planner
