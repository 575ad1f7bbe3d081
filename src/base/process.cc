#include "octet/base/process.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>

#include "octet/base/error.h"
#include "octet/base/log.h"

namespace octet {
namespace {

std::atomic<int> code_of_end = -1;
static_assert(std::atomic<int>::is_always_lock_free);

}  // namespace

void note_ending(int code) noexcept {
  code_of_end.store(code);
}

int noted_ending() noexcept {
  return code_of_end.load();
}

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

void run_thread_behind() {
  // On Linux each thread has a separate niceness, under its thread number.
  const auto thread = static_cast<id_t>(::gettid());
  errno = 0;
  const int now = ::getpriority(PRIO_PROCESS, thread);
  if (now == -1 && errno != 0) return;
  ::setpriority(PRIO_PROCESS, thread, std::max(now, kBehindNiceness));
}

}  // namespace octet
