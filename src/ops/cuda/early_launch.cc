#include "cuda/early_launch.h"

#include <cstring>

#include "octet/base/environment.h"

namespace octet::ops::cuda {

bool launches_early() {
  static const bool on = [] {
    const char* wish = environment_variable("OCTETRUN_EARLY_LAUNCH");
    return wish == nullptr || std::strcmp(wish, "off") != 0;
  }();
  return on;
}

}  // namespace octet::ops::cuda
