#include "octet/base/own_end.h"

#include <atomic>
#include <cstdlib>

#include "octet/base/error.h"
#include "octet/base/log.h"

namespace octet {
namespace {

std::atomic<bool> others_end = false;

void tell() {
  if (!others_end.exchange(false)) return;
  log::error(
      Error({.what = "a library has ended the program",
             .found = "see the last lines that it printed",
             .fix =
                 "if they name threads or memory, use fewer threads (OMP_NUM_THREADS=1) or fewer ranks on "
                 "this node, or raise the limits (ulimit -u, ulimit -v; pids.max of the container or job)"})
          .what());
}

}  // namespace

EndsItself::EndsItself() {
  log::debug("");  // the log is made before, so that it is there until then
  static const int registered = std::atexit(tell);
  others_end = registered == 0;
}

EndsItself::~EndsItself() {
  allow();
}

void EndsItself::allow() {
  others_end = false;
}

}  // namespace octet
