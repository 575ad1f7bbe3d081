#include "requests.h"

#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "octet/base/error.h"

namespace octet::launch {
namespace {

constexpr std::array kStops{SIGHUP, SIGINT, SIGTERM, SIGUSR2};
// These signals would make mpirun end its ranks at once.
constexpr std::array kEndMpirun{SIGHUP, SIGINT, SIGTERM};

sigset_t waited_for() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kStops) ::sigaddset(&set, signal);
  for (const int signal : {SIGUSR1, SIGCHLD}) ::sigaddset(&set, signal);
  return set;
}

bool is_ignored(int signal) {
  struct sigaction action {};
  return ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

Requests::Requests() {
  const sigset_t set = waited_for();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  hup_is_ignored_ = is_ignored(SIGHUP);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGCHLD, SIGTERM}) ::signal(signal, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  file_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (file_ < 0)
    throw Error({.what = "the program cannot wait for signals",
                 .found = std::strerror(errno),
                 .fix = "start it again; if it happens again, look at the limits (ulimit -a)"});
}

void Requests::read() {
  signalfd_siginfo info{};
  while (::read(file_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD) continue;
    if (signal != SIGUSR1 && !stop_) stop_ = signal;
    taken_.push_back(signal);
  }
}

std::vector<int> Requests::take() {
  read();
  return std::exchange(taken_, {});
}

bool Requests::stop_is_asked() {
  read();
  return stop_.has_value();
}

void Requests::hand_over_to_mpirun() const {
  for (const int signal : {SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGPIPE, SIGCHLD})
    ::signal(signal, SIG_DFL);
  if (!hup_is_ignored_) ::signal(SIGHUP, SIG_DFL);
  sigset_t blocked;
  ::sigemptyset(&blocked);
  for (const int signal : kEndMpirun) ::sigaddset(&blocked, signal);
  ::sigprocmask(SIG_SETMASK, &blocked, nullptr);
}

}  // namespace octet::launch
