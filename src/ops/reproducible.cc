#include "octet/ops/reproducible.h"

#include "octet/ops/attention.h"
#include "octet/ops/gemm.h"

namespace octet::ops {

bool reproducible_by_default(const Device& device) {
  const DeviceKind kind = device.kind() == DeviceKind::dry ? device.stands_for() : device.kind();
  return kind != DeviceKind::cuda;
}

void set_reproducible(bool on) {
  set_deterministic_attention(on);
  set_gemm_timing(!on);
}

}  // namespace octet::ops
