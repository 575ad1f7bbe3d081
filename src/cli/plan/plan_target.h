#pragma once

#include <cstddef>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/device/device.h"
#include "octet/plan/time.h"

namespace octet::cli {

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

}  // namespace octet::cli
