#include "delivery.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/strings.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;
using std::chrono::seconds;

// Time that ranks have to take a stop. Other programs than the trainer may have no handler. The short time
// applies if ranks only run on this host and have not started yet: they will not start any more.
constexpr seconds kPatience(60), kShortPatience(2);
// Ranks of other hosts, which are not visible here, may still start within this time.
constexpr seconds kStarts(60), kToldAgain(4);

// Finds the ranks of this host: the topmost processes below mpirun that have a rank number and a handler for
// the signal. A shell around a rank, or a rank that is still loading, has no handler and would die of the
// signal.
void find_ranks(const ProcessTree& tree, pid_t parent, int signal, std::vector<pid_t>& found) {
  for (const pid_t child : tree.children(parent)) {
    // The order matters: a child before exec has mpirun's handlers and environment.
    if (is_rank(child) && catches(child, signal)) {
      found.push_back(child);
    } else {
      find_ranks(tree, child, signal, found);
    }
  }
}

// Returns the sockets of a process by their inode numbers.
std::set<std::string> sockets_of(pid_t process) {
  std::set<std::string> found;
  std::error_code none;
  fs::directory_iterator at("/proc/" + std::to_string(process) + "/fd", none);
  // The process may end while its folder is read.
  for (const fs::directory_iterator end; !none && at != end; at.increment(none)) {
    std::error_code closed;
    const std::string link = fs::read_symlink(at->path(), closed).string();
    constexpr std::string_view kSocket = "socket:[";
    if (link.starts_with(kSocket))
      found.insert(link.substr(kSocket.size(), link.size() - kSocket.size() - 1));
  }
  return found;
}

// Whether the kernel has retransmitted the same bytes `times` times on a TCP connection. Checks only the
// given sockets, if any.
bool has_sent_again(pid_t process, int times, const std::set<std::string>* sockets) {
  constexpr std::size_t kTimes = 6, kInode = 9;  // columns of /proc/net/tcp
  for (const char* name : {"net/tcp", "net/tcp6"}) {
    const std::vector<std::string> lines = split(file_of(process, name), '\n');
    for (std::size_t i = 1; i < lines.size(); ++i) {
      std::vector<std::string> columns;
      for (std::string& word : split(lines[i], ' ')) {
        if (!word.empty()) columns.push_back(std::move(word));
      }
      if (columns.size() <= kInode || std::strtol(columns[kTimes].c_str(), nullptr, 16) < times) continue;
      if (sockets == nullptr || sockets->contains(columns[kInode])) return true;
    }
  }
  return false;
}

}  // namespace

bool has_ranks_below(pid_t mpirun) {
  return std::ranges::any_of(ProcessTree().below(mpirun), is_rank);
}

void end_job(pid_t mpirun, int signal) {
  std::vector<pid_t> processes = ProcessTree().below(mpirun);
  std::ranges::reverse(processes);
  ::kill(mpirun, signal);
  for (const pid_t process : processes) ::kill(process, SIGKILL);
}

Delivery::Delivery(Mpi mpi, pid_t mpirun, bool hosts)
    : mpi_(mpi), mpirun_(mpirun), forwards_(mpi == Mpi::open && hosts), hosts_(hosts) {}

void Delivery::ask(int signal) {
  if (requests_[SIGUSR2].asked == 0) since_ = Clock::now();
  ++requests_[signal].asked;
}

bool Delivery::has_ranks() const {
  return has_ranks_below(mpirun_);
}

void Delivery::deliver() {
  for (auto& [signal, request] : requests_) {
    if (request.asked > 0) send(signal, request);
  }
  const auto stop = requests_.find(SIGUSR2);
  if (stop == requests_.end() || stop->second.asked == 0 || stop->second.answered) return;
  if (is_overdue()) force_stop();
}

// Ranks of this host get the signal directly; one rank with a stop stops all. If hosts are named, Open MPI
// forwards the signal to all ranks.
void Delivery::send(int signal, Request& request) {
  const ProcessTree tree;
  std::vector<pid_t> ranks;
  find_ranks(tree, mpirun_, signal, ranks);
  if (!forwards_) {
    for (const pid_t rank : ranks) {
      int& told = request.told[rank];
      if (told >= request.asked || ::kill(rank, signal) != 0) continue;
      told = request.asked;
      request.answered = true;
    }
    return;
  }
  if (request.told[mpirun_] >= request.asked || !catches(mpirun_, signal)) return;
  // Ranks of other hosts are not visible. Without ranks here, an mpirun that has just started may not have
  // started them, so they get the signal a second time.
  const bool is_early = Clock::now() - started_ <= kStarts;
  if (!ranks.empty() || !is_early || told_early_) {
    if (ranks.empty() && is_early && Clock::now() - *since_ < kToldAgain) return;
    request.told[mpirun_] = request.asked;
    request.answered = true;
  }
  told_early_ = true;
  ::kill(mpirun_, signal);
}

// Whether a program other than the trainer runs as a rank here.
bool Delivery::runs_another_program() const {
  return std::ranges::any_of(ProcessTree().below(mpirun_), [](pid_t process) {
    if (!is_rank(process)) return false;
    const std::string program = program_of(process);
    return !program.empty() && program != "trainer";
  });
}

bool Delivery::is_overdue() const {
  const auto waited = Clock::now() - *since_;
  if (waited > kPatience) return true;
  if (waited <= kShortPatience) return false;
  return runs_another_program() || (!hosts_ && (requests_.at(SIGUSR2).asked > 1 || !has_ranks()));
}

// Called if the ranks have no handler, or if mpirun has not started them.
void Delivery::force_stop() {
  requests_[SIGUSR2].answered = true;
  if (!has_ranks()) {
    end_job(mpirun_, kStoppedBeforeRanks);
  } else if (mpi_ == Mpi::open) {
    ::kill(mpirun_, SIGUSR2);
  } else {
    for (const pid_t process : ProcessTree().below(mpirun_)) {
      if (has_variable(process, {"PMI_RANK="})) ::kill(process, SIGUSR2);
    }
  }
}

// The seventh transmission is 25 seconds after the first, which equals the keepalive limit of idle
// connections (oob_tcp_keepalive_*). Ranks of this host end together with all others. After their end the
// third transmission is enough, after 1.5 seconds.
bool SilentHost::is_waited_for() {
  constexpr int kTimes = 7, kTimesAfterRanks = 3;
  constexpr int kLooksBetween = 10;  // looking for ranks reads a file of every process
  if (!had_ranks_ && looks_++ % kLooksBetween == 0) had_ranks_ = has_ranks_below(mpirun_);
  if (!has_sent_again(mpirun_, kTimesAfterRanks, nullptr)) return false;
  const bool has_ranks = has_ranks_below(mpirun_);
  const std::set<std::string> sockets = sockets_of(mpirun_);
  return has_sent_again(mpirun_, had_ranks_ && !has_ranks ? kTimesAfterRanks : kTimes, &sockets);
}

}  // namespace octet::launch
