#include "guard.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <thread>
#include <vector>

#include "leftovers.h"
#include "octet/launch/processes.h"

namespace octet::launch {
namespace {

constexpr pid_t kDismissed = -1;

// Reads a number from the pipe. Returns false if launch/mpirun is gone.
bool read_number(int file, pid_t& number) {
  ssize_t n = 0;
  do {
    n = ::read(file, &number, sizeof number);
  } while (n < 0 && errno == EINTR);
  return n == static_cast<ssize_t>(sizeof number);
}

// Ends the ranks; mpirun then clears up. The search repeats, because mpirun may be about to start ranks.
void end_orphans(const Process& mpirun) {
  constexpr int kLooks = 30;
  constexpr std::chrono::milliseconds kBetween(100);
  for (int look = 0; look < kLooks && !mpirun.gone(); ++look) {
    std::vector<pid_t> ranks = ProcessTree().below(mpirun.pid());
    std::ranges::reverse(ranks);
    for (const pid_t rank : ranks) ::kill(rank, SIGKILL);
    std::this_thread::sleep_for(kBetween);
  }
  if (!mpirun.gone()) ::kill(mpirun.pid(), SIGKILL);
}

void keep_watch(int file, const std::string& sessions, std::chrono::system_clock::time_point began) {
  pid_t number = 0;
  if (!read_number(file, number) || number == kDismissed) return;
  const Process mpirun(number);
  if (read_number(file, number)) return;  // dismissed
  end_orphans(mpirun);
  Leftovers(sessions, mpirun.pid(), began).clear_up();
}

}  // namespace

Guard::Guard(const std::string& sessions, std::chrono::system_clock::time_point began) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return;
  process_ = ::fork();
  if (process_ != 0) {
    ::close(ends[0]);
    words_ = ends[1];
    return;
  }
  ::setsid();
  ::prctl(PR_SET_NAME, "octet-guard");
  for (const int signal : {SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2}) ::signal(signal, SIG_IGN);
  // A reader of launch/mpirun's output must not wait for the guard to close it.
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int file : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, file);
  // The guard closes its end of the pipe and the files of launch/mpirun's caller.
  ::close(ends[1]);
  constexpr int kKept = STDERR_FILENO + 1, kUsualFiles = 1024;
  if (ends[0] != kKept) ::dup2(ends[0], kKept);
  if (::close_range(kKept + 1, ~0U, 0) != 0) {  // Linux before 5.9
    for (int file = kKept + 1; file < kUsualFiles; ++file) ::close(file);
  }
  keep_watch(kKept, sessions, began);
  ::_exit(0);
}

Guard::~Guard() {
  dismiss();
}

void Guard::watch(pid_t mpirun) const {
  if (::write(words_, &mpirun, sizeof mpirun) < 0) return;  // the guard was killed
}

void Guard::dismiss() {
  if (process_ < 0 || words_ < 0) return;
  watch(kDismissed);
  ::close(words_);
  words_ = -1;
  ::waitpid(process_, nullptr, 0);
}

}  // namespace octet::launch
