#include "octet/ops/reproducible.h"

namespace octet::ops {

bool reproducible_by_default(const Device& device) {
  const DeviceKind kind = device.kind() == DeviceKind::dry ? device.stands_for() : device.kind();
  return kind != DeviceKind::cuda;
}

}  // namespace octet::ops
