#include "cuda/early_launch.h"

#include <cstring>

#include "octet/base/environment.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

bool launches_early() {
  static const bool on = [] {
    const char* wish = environment_variable("OCTETRUN_EARLY_LAUNCH");
    // Code for GPUs before Hopper does not wait for the previous kernel.
    return (wish == nullptr || std::strcmp(wish, "off") != 0) && octet::cuda::code_here() >= 90;
  }();
  return on;
}

}  // namespace octet::ops::cuda
