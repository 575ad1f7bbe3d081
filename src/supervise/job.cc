#include "job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include "octet/base/clock.h"
#include "octet/base/error.h"
#include "octet/launch/processes.h"

namespace octet::supervise {
namespace {

// SIGCHLD is included only to wake poll().
constexpr std::array kRequests{SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGUSR2, SIGCHLD};

constexpr std::chrono::seconds kDies(10);  // a killed process that remains waits for a disk or a GPU
constexpr std::chrono::milliseconds kMoment(20);
constexpr std::chrono::seconds kBetweenLooks(1);
constexpr std::chrono::seconds kStarts(2);  // a launcher has handlers by then

sigset_t requests() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : kRequests) ::sigaddset(&set, signal);
  return set;
}

// Whether a process handles, ignores, or blocks and reads both a signal and SIGTERM. One of them is not
// enough: a shell catches SIGINT before a script sets its traps.
bool takes(pid_t process, int signal) {
  const std::uint64_t taken = launch::signals_of(process, "SigCgt") | launch::signals_of(process, "SigIgn") |
                              launch::signals_of(process, "SigBlk");
  const auto has = [taken](int one) { return (taken >> (one - 1) & 1) != 0; };
  return has(signal) && has(SIGTERM);
}

// Runs in the new process between fork and exec: must not allocate or lock.
[[noreturn]] void become(char* const* words, int output, pid_t supervisor) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != supervisor) ::_exit(128 + SIGKILL);
  ::setsid();
  const sigset_t set = requests();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  const int nothing = ::open("/dev/null", O_RDONLY);
  if (nothing >= 0) ::dup2(nothing, STDIN_FILENO);
  ::dup2(output, STDERR_FILENO);
  ::execvp(words[0], words);
  ::_exit(127);
}

}  // namespace

void adopt_orphans() {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);
}

std::vector<pid_t> processes_below() {
  return launch::ProcessTree().below(::getpid());
}

Requests::Requests() {
  const sigset_t set = requests();
  ::sigprocmask(SIG_BLOCK, &set, nullptr);
  file_ = ::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (file_ < 0)
    throw Error({.what = "the program cannot wait for signals",
                 .found = std::strerror(errno),
                 .fix = "start it again; if it happens again, look at the limits (ulimit -a)"});
}

Requests::~Requests() {
  ::close(file_);
  const sigset_t set = requests();
  ::sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

std::vector<int> Requests::take() {
  std::vector<int> taken;
  signalfd_siginfo info{};
  while (::read(file_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    if (info.ssi_signo != SIGCHLD) taken.push_back(static_cast<int>(info.ssi_signo));
  }
  return taken;
}

Job::Job(const std::vector<std::string>& words, Hear hear) : hear_(std::move(hear)) {
  std::vector<std::string> own = words;
  std::vector<char*> arguments;
  arguments.reserve(own.size() + 1);
  for (std::string& word : own) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error({.what = "the job cannot be started",
                 .found = std::strerror(errno),
                 .fix = "raise the limits of processes and memory (ulimit -u, ulimit -v)"});
  const pid_t supervisor = ::getpid();
  launcher_ = ::fork();
  const int error = errno;
  if (launcher_ == 0) become(arguments.data(), ends[1], supervisor);
  ::close(ends[1]);
  output_ = ends[0];
  if (launcher_ < 0) {
    ::close(output_);
    throw Error({.what = "the job cannot be started",
                 .found = std::strerror(error),
                 .where = words[0],
                 .fix = "check its name and permissions",
                 .code = exit_code_of(error)});
  }
  ::fcntl(output_, F_SETFL, O_NONBLOCK);
}

Job::~Job() {
  ::close(output_);
}

void Job::take_output() {
  std::array<char, 65536> bytes{};
  for (;;) {
    const ssize_t n = ::read(output_, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    hear_({bytes.data(), static_cast<std::size_t>(n)});
  }
}

void Job::reap() {
  int status = 0;
  // Also reaps adopted orphans.
  for (pid_t pid = 0; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    if (pid != launcher_) continue;
    ended_ = true;
    killed_ = WIFSIGNALED(status);
    code_ = killed_ ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }
}

bool Job::wait(int wake, int milliseconds) {
  std::array<pollfd, 2> files{pollfd{.fd = wake, .events = POLLIN, .revents = 0},
                              pollfd{.fd = output_, .events = POLLIN, .revents = 0}};
  ::poll(files.data(), files.size(), milliseconds);
  take_output();
  // The other end is closed, so poll() would return at once from now on.
  if ((files[1].revents & POLLHUP) != 0 && (files[1].revents & POLLIN) == 0)
    std::this_thread::sleep_for(kMoment);
  look_for_traces();
  reap();
  return !ended_;
}

void Job::look_for_traces() {
  if (!traces_.incomplete() || Clock::now() - looked_ < kBetweenLooks) return;
  looked_ = Clock::now();
  for (const pid_t process : processes_below()) traces_.note(process);
}

void Job::send(int signal) const {
  if (ended_) return;
  while (signal != SIGKILL && !takes(launcher_, signal) && Clock::now() < started_ + kStarts)
    std::this_thread::sleep_for(kMoment);
  ::kill(launcher_, signal);
}

void Job::end_rest(std::chrono::milliseconds clears_up) {
  const auto ended = Clock::now();
  const auto patience = killed_ ? Clock::duration(clears_up) : Clock::duration::zero();
  for (;;) {
    reap();
    take_output();
    const std::vector<pid_t> left = processes_below();
    if (left.empty()) break;
    // Noted in every iteration: the process that would clear up may be killed as well, and ranks end with
    // their mpirun.
    if (killed_) std::ranges::for_each(left, [&](pid_t pid) { traces_.note(pid); });
    const auto passed = Clock::now() - ended;
    if (passed > patience + kDies) return;
    if (passed >= patience) std::ranges::for_each(left, [](pid_t pid) { ::kill(pid, SIGKILL); });
    std::this_thread::sleep_for(kMoment);
  }
  if (killed_) traces_.remove();
}

}  // namespace octet::supervise
