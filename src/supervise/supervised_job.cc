#include "supervised_job.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/timing.h"
#include "octet/launch/processes.h"

namespace octet::supervise {
namespace {

namespace fs = std::filesystem;

// Variables of Open MPI 4 and 5.
constexpr std::string_view kFolders[] = {"OMPI_MCA_orte_jobfam_session_dir=", "PMIX_SERVER_TMPDIR="};
constexpr std::string_view kJob = "PMIX_NAMESPACE=";
// Open MPI 4 and 5: vader_segment.HOST.USER.JOB.RANK.
constexpr std::string_view kSegments[] = {"vader_segment.", "sm_segment."};
constexpr const char* kSharedMemory = "/dev/shm";
// Files of PMIx 5 in the folder for temporary files: pmix-gds-shmem.HOST-NUMBER.KIND.N, with mpirun's process
// id N.
constexpr std::string_view kOfPmix = "/pmix-gds-shmem.";

bool is_mine(const fs::path& path) {
  struct stat st {};
  return ::lstat(path.c_str(), &st) == 0 && st.st_uid == ::getuid();
}

void remove_mine(const fs::path& path) {
  std::error_code none;
  if (is_mine(path)) fs::remove_all(path, none);
}

// Returns the job number in the name of a shared memory file; "" for other names.
std::string job_in(const std::string& name) {
  if (std::ranges::none_of(kSegments, [&](std::string_view begin) { return name.starts_with(begin); }))
    return "";
  const std::size_t rank = name.rfind('.');
  const std::size_t job = name.rfind('.', rank - 1);
  return job == std::string::npos ? "" : name.substr(job + 1, rank - job - 1);
}

// Whether the name of a folder is of a single mpirun. Folders with other names are shared by several jobs.
bool is_of_one_job(std::string_view name) {
  if (name.starts_with("prterun.")) return true;
  for (const std::string_view begin : {"pid.", "ompi."}) {
    if (!name.starts_with(begin)) continue;
    const std::string_view number = name.substr(begin.size());
    return !number.empty() && number.find_first_not_of("0123456789") == std::string_view::npos;
  }
  return false;
}

}  // namespace

void Traces::note(pid_t process) {
  const std::string environment = launch::file_of(process, "environ");
  bool rank = false;
  for (std::string_view left = environment; !left.empty();) {
    const std::string_view word = left.substr(0, left.find('\0'));
    left.remove_prefix(std::min(word.size() + 1, left.size()));
    for (const std::string_view variable : kFolders) {
      if (!word.starts_with(variable)) continue;
      const fs::path folder = word.substr(variable.size());
      if (!folder.is_absolute() || !is_of_one_job(folder.filename().string())) continue;
      folders_.insert(folder.string());
      rank = true;
    }
    if (word.starts_with(kJob)) {
      const std::string_view number = word.substr(kJob.size());
      std::uint32_t job = 0;
      const auto read = std::from_chars(number.begin(), number.end(), job);
      if (read.ec != std::errc() || read.ptr != number.end()) continue;
      char text[16];
      std::snprintf(text, sizeof text, "%x", job);
      jobs_.insert(text);
    }
  }
  if (rank) note_memory(process);
}

// Open MPI 5 uses a hash as the job number, so it is read from the shared memory that a rank has mapped.
// PMIx's files are found there, too.
void Traces::note_memory(pid_t process) {
  std::istringstream maps(launch::file_of(process, "maps"));
  const std::string begin = std::string(kSharedMemory) + "/";
  for (std::string line; std::getline(maps, line);) {
    const std::size_t path = line.find('/');
    if (path == std::string::npos) continue;
    // The kernel writes " (deleted)" after the name of a removed file.
    const std::string file = line.substr(path, line.find(' ', path) - path);
    if (file.rfind(kOfPmix) == file.rfind('/')) files_.insert(file);
    if (!file.starts_with(begin)) continue;
    if (const std::string job = job_in(file.substr(begin.size())); !job.empty()) jobs_.insert(job);
  }
}

void Traces::remove() const {
  for (const std::string& folder : folders_) remove_mine(folder);
  for (const std::string& file : files_) remove_mine(file);
  if (jobs_.empty()) return;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(kSharedMemory, none)) {
    if (jobs_.contains(job_in(entry.path().filename().string()))) remove_mine(entry.path());
  }
}

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

// Finds out whether a process handles, ignores, or blocks and reads both a signal and SIGTERM. One of them is
// not enough: a shell catches SIGINT before a script sets its traps.
class SignalLook {
 public:
  SignalLook(pid_t process, int signal) : process_(process), signal_(signal) {}

  bool takes() {
    const std::uint64_t handled =
        launch::signals_of(process_, "SigCgt") | launch::signals_of(process_, "SigIgn");
    if (both(handled)) return true;
    // A shell without traps blocks signals for a moment while it forks, so one look proves nothing.
    blocked_looks_ = both(handled | launch::signals_of(process_, "SigBlk")) ? blocked_looks_ + 1 : 0;
    return blocked_looks_ >= kBlockedLooks;
  }

 private:
  static constexpr int kBlockedLooks = 5;
  bool both(std::uint64_t set) const {
    const auto has = [set](int one) { return (set >> (one - 1) & 1) != 0; };
    return has(signal_) && has(SIGTERM);
  }
  pid_t process_;
  int signal_;
  int blocked_looks_ = 0;
};

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
  SignalLook look(launcher_, signal);
  while (signal != SIGKILL && Clock::now() < started_ + kStarts && !look.takes())
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
    // The files of each process are noted in every iteration, because they can no longer be found after the
    // process has ended. The process that usually removes them may be killed as well.
    if (killed_) std::ranges::for_each(left, [&](pid_t pid) { traces_.note(pid); });
    const auto passed = Clock::now() - ended;
    if (passed > patience + kDies) return;
    if (passed >= patience) std::ranges::for_each(left, [](pid_t pid) { ::kill(pid, SIGKILL); });
    std::this_thread::sleep_for(kMoment);
  }
  if (killed_) traces_.remove();
}

}  // namespace octet::supervise
