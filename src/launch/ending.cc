#include "ending.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "delivery.h"
#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/process.h"
#include "octet/base/terminal.h"

namespace octet::launch {
namespace {

constexpr int kLargestOfSignals = kCodeOfSignal + 64;
constexpr int kNotFound = 127;  // exit code of a shell that does not find mpirun's daemon
constexpr const char* kAgain = "start the run again: it resumes from its newest checkpoint";

int code_of(ExitCode code) {
  return static_cast<int>(code);
}

std::string limit_of(__rlimit_resource resource, rlim_t unit = 1) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return std::to_string(limit.rlim_cur / unit);
}

/// Determines the message and the exit code.
class Conclusion {
 public:
  Conclusion(const Ending& ending, const Leftovers& leftovers,
             const std::function<void(const std::string&)>& write)
      : ending_(ending), leftovers_(leftovers), write_(write), code_(ending.code) {}

  int reach();

 private:
  void tell(const Problem& problem) const { write_(message(problem)); }
  bool is_signal() const { return code_ > kCodeOfSignal && code_ <= kLargestOfSignals; }
  std::string signal_name() const;
  bool was_stopped() const;
  void explain_failed_start();
  void explain_end();
  void explain_hosts();

  const Ending& ending_;
  const Leftovers& leftovers_;
  const std::function<void(const std::string&)>& write_;
  int code_;
  std::string where_ = "mpirun " + line_of(ending_.words);
  bool is_told_ = false;  ///< a message replaces ssh's output
};

std::string Conclusion::signal_name() const {
  const char* name = ::sigabbrev_np(code_ - kCodeOfSignal);
  return std::to_string(code_ - kCodeOfSignal) + (name == nullptr ? "" : std::string(" (SIG") + name + ")");
}

// Whether a stop came before the first step. After it, the program itself reports the stop.
bool Conclusion::was_stopped() const {
  if (code_ == kCodeOfSignal + kStoppedBeforeRanks) return true;
  // The stop reached mpirun before it or a rank had a handler.
  if (code_ == kCodeOfSignal + SIGUSR2 && runs_trainer(ending_.words)) return true;
  return ending_.stop && code_ == code_of(ExitCode::preempted) && ending_.cause != Cause::answered;
}

// Writes a message instead of MPI's own output, which was left out.
void Conclusion::explain_failed_start() {
  const char* variable = environment_variable("TMPDIR");
  const std::string tmp = variable == nullptr || *variable == '\0' ? "/tmp" : variable;
  constexpr rlim_t kKiB = 1024;
  code_ = code_of(ExitCode::failure);
  switch (ending_.cause) {
    case Cause::no_room: {
      struct statvfs disk {};
      const std::uint64_t free = ::statvfs(tmp.c_str(), &disk) == 0
                                     ? static_cast<std::uint64_t>(disk.f_bavail) * disk.f_frsize / kKiB
                                     : 0;
      tell({.what = "MPI has too little space for the files that mpirun and its ranks share",
            .expected = "about 8 MiB for each host, and as much memory in /dev/shm for each rank",
            .found = printable_line(tmp) + " has " + std::to_string(free) + " KiB free; a file may have " +
                     limit_of(RLIMIT_FSIZE, kKiB) + " KiB",
            .where = printable_line(tmp) + " on " + host_name(),
            .fix = "free space there, set TMPDIR to another folder, or raise the limit (ulimit -f)"});
      code_ = code_of(ExitCode::storage);
      break;
    }
    case Cause::no_processes:
      tell({.what = "mpirun and its ranks cannot start as many processes and threads as they need",
            .found = "a limit of " + limit_of(RLIMIT_NPROC) + " for this user",
            .where = host_name(),
            .fix = "raise it (ulimit -u, pids.max of the container or job), or start fewer ranks"});
      break;
    case Cause::no_files:
      tell({.what = "mpirun cannot open as many files and connections as it needs",
            .found = "a limit of " + limit_of(RLIMIT_NOFILE),
            .where = host_name(),
            .fix = "raise it (ulimit -n 1024), or start fewer ranks; if the limit is higher, look at the "
                   "network (ip address)"});
      break;
    case Cause::no_folder:
      tell({.what = "mpirun cannot make its folder for temporary files",
            .expected = "a folder that this user may write to",
            .where = printable_line(tmp) + " on " + host_name(),
            .fix = "set TMPDIR to another folder"});
      code_ = code_of(ExitCode::usage);
      break;
    default:
      tell({.what = "MPI could not start the ranks; its messages are above",
            .where = where_,
            .fix = "check the machine with trainer verify under launch/mpirun, or several hosts with "
                   "launch/check-hosts HOSTFILE"});
  }
}

void Conclusion::explain_end() {
  // Open MPI 4 does not report the signal of a rank if all ranks end at once.
  constexpr std::array kFatal{SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGKILL, SIGSEGV};
  const int signal = code_ - kCodeOfSignal;
  const bool left_its_folder = leftovers_.clear_up();
  if (code_ == kCodeOfSignal + kHostSilent) {
    tell({.what = "a host no longer answers mpirun",
          .fix = std::string("check the hosts and their network; ") + kAgain});
    code_ = code_of(ExitCode::hang);
  } else if ((left_its_folder || ending_.was_killed) && is_signal()) {
    // Some packages of Open MPI 5.0 (5.0.7 in Debian 13) crash before they start two programs.
    const bool several = std::ranges::find(ending_.words, ":") != ending_.words.end();
    tell(
        {.what = "mpirun was ended by signal " + std::to_string(signal) + ", and its ranks with it",
         .where = "mpirun, process " + std::to_string(ending_.mpirun) + " on " + host_name(),
         .fix = signal == SIGSEGV && several
                    ? "give mpirun one program: some packages of Open MPI 5.0 fail over several (ONE : OTHER)"
                    : fix_after(signal)});
  } else if (ending_.mpi == Mpi::open && ending_.cause == Cause::none &&
             std::ranges::find(kFatal, signal) != kFatal.end()) {
    tell({.what = "a rank was ended by signal " + signal_name() + ", and the others with it",
          .where = where_ + "; mpirun does not say which rank",
          .fix = fix_after(signal)});
  } else if (ending_.cause == Cause::lost_a_rank && code_ != kCodeOfSignal + SIGUSR2) {
    tell({.what = "a rank was ended by " +
                  (is_signal() ? "signal " + signal_name() : std::string("a signal")) +
                  ", and the others with it",
          .where = "mpirun does not say which rank, because its texts are missing here",
          .fix = fix_after(is_signal() ? signal : SIGKILL)});
  }
}

// Codes above the range of signals are from mpirun itself: it lost a host.
void Conclusion::explain_hosts() {
  const bool refused = ending_.cause == Cause::not_started || ending_.cause == Cause::unknown_host;
  const bool is_own = code_ > kLargestOfSignals;
  if (refused && (is_own || code_ == kNotFound)) {
    std::string words;
    for (const std::string& line : ending_.words_of_ssh)
      words += (words.empty() ? "" : ", ") + printable_line(line);
    is_told_ = true;
    code_ = code_of(ExitCode::hang);
    if (ending_.cause == Cause::unknown_host) {
      tell({.what = "mpirun cannot find one of the hosts: its name does not resolve",
            .expected = "names or addresses of hosts that ssh reaches",
            .found = words,
            .where = where_,
            .fix = "correct the name in the hostfile or after --host, or add it to DNS or /etc/hosts (getent "
                   "hosts NAME)"});
      return;
    }
    // launch/mpirun is next to launch/check-hosts, octet-mpirun to octet-check-hosts.
    const std::string_view own = "mpirun";
    const std::string check =
        ending_.called.ends_with(own)
            ? ending_.called.substr(0, ending_.called.size() - own.size()) + "check-hosts"
            : "launch/check-hosts";
    tell({.what = "mpirun could not start on one of the hosts",
          .expected = "ssh reaches each host without a question, and finds Open MPI there",
          .found = words.empty() ? "no message of ssh" : words,
          .where = where_,
          .fix = printable_line(check) + " HOSTFILE checks each host and reports its problems"});
  } else if (is_own) {
    tell({.what = "mpirun ended with code " + std::to_string(code_) +
                  ": it lost a rank or the connection to a host",
          .fix = std::string("check the hosts and their network; ") + kAgain});
    code_ = code_of(ExitCode::hang);
  }
}

int Conclusion::reach() {
  // Open MPI 5 may end a rank that has lost its neighbour, with an MPI error number, before the program can
  // print an error.
  if (ending_.cause == Cause::aborted && code_ > code_of(ExitCode::failure) &&
      code_ < code_of(ExitCode::usage)) {
    tell({.what = "MPI ended a rank that had lost its connection to another rank, and the other ranks with "
                  "it (code " +
                  std::to_string(code_) + ")",
          .fix = std::string("look for a killed rank (too little memory: dmesg), and check the network; ") +
                 kAgain});
    code_ = code_of(ExitCode::hang);
  }
  // In this case Open MPI 5 ends its ranks and exits with 0, as if the run were complete.
  if (code_ == 0 && ending_.cause == Cause::lost_a_host) {
    tell({.what = "mpirun has lost a host, and ended the ranks of all others",
          .where = where_,
          .fix = std::string("check the hosts and their network; ") + kAgain});
    code_ = code_of(ExitCode::hang);
  }
  if (was_stopped()) {
    leftovers_.clear_up();
    code_ = code_of(ExitCode::preempted);
    write_("stopped before the first step, as asked: nothing is lost\n");
  } else if (code_ != 0 && is_failed_start(ending_.cause)) {
    leftovers_.clear_up();
    explain_failed_start();
  } else if (ending_.cause == Cause::wrong_call) {
    leftovers_.clear_up();
    code_ = code_of(ExitCode::usage);  // mpirun's codes are signals or have no meaning here
  } else {
    explain_end();
  }
  // The ranks received USR2 instead of the original signal.
  if (ending_.stop && code_ == kCodeOfSignal + SIGUSR2) code_ = kCodeOfSignal + *ending_.stop;
  explain_hosts();
  if (!is_told_) {
    for (const std::string& line : ending_.words_of_ssh) write_(printable_line(line) + "\n");
  }
  return code_;
}

}  // namespace

int conclude(const Ending& ending, const Leftovers& leftovers,
             const std::function<void(const std::string&)>& write) {
  return Conclusion(ending, leftovers, write).reach();
}

}  // namespace octet::launch
