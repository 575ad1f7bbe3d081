#include "octet/base/thread_priority.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace octet {

void run_thread_behind() {
  // On Linux each thread has a separate niceness, under its thread number.
  const auto thread = static_cast<id_t>(::gettid());
  errno = 0;
  const int now = ::getpriority(PRIO_PROCESS, thread);
  if (now == -1 && errno != 0) return;
  ::setpriority(PRIO_PROCESS, thread, std::max(now, kBehindNiceness));
}

}  // namespace octet
