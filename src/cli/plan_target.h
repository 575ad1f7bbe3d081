#pragma once

#include <cstddef>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/plan/time.h"

namespace octet::cli {

/// What a plan is for.
struct PlanTarget {
  DeviceKind kind = DeviceKind::cpu;
  std::string name;
  std::string card;        ///< its key, where plans know its figures; "" : an H200's are taken for a GPU
  plan::Rates rates;       ///< of a GPU
  std::size_t memory = 0;  ///< of the device; of a rank's share of the node's memory on CPUs
  comm::Place place;
};

}  // namespace octet::cli
