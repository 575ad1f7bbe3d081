#include "octet/ops/reproducible.h"

namespace octet::ops {

bool reproducible_by_default(const Device& device) {
  return (device.traits().computes ? device.traits() : device.planned_traits()).reproducible;
}

}  // namespace octet::ops
