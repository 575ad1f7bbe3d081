#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <deque>
#include <filesystem>
#include <random>
#include <utility>

#include "check/call.h"
#include "check/connections.h"
#include "check/finding.h"
#include "check/host_judge.h"
#include "check/named_paths.h"
#include "check/questions.h"
#include "child.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/base/terminal.h"
#include "octet/launch/check_hosts.h"
#include "octet/launch/hosts.h"
#include "requests.h"
#include "standard_streams.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;

constexpr int kSignalBase = 128;

void print(const std::string& text) {
  write_all(STDOUT_FILENO, text);
}

void print(const std::vector<Finding>& findings) {
  for (const Finding& finding : findings) print(lines_of(finding));
}

/// An empty file with a new name. It is removed with this object.
class TokenFile {
 public:
  /// Throws Error (usage) if the folder takes no file.
  explicit TokenFile(const std::string& folder);
  ~TokenFile() { ::unlink(path_.c_str()); }
  TokenFile(const TokenFile&) = delete;
  TokenFile& operator=(const TokenFile&) = delete;
  const std::string& name() const { return name_; }

 private:
  std::string name_, path_;
};

TokenFile::TokenFile(const std::string& folder)
    : name_(".octet-check-" + std::to_string(::getpid()) + "-" + std::to_string(std::random_device()())),
      path_(folder + "/" + name_) {
  constexpr mode_t kForAll = 0666;
  const int file = ::open(path_.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, kForAll);
  if (file < 0)
    throw Error({.what = "nothing can be written to the folder",
                 .expected = "a folder that takes files",
                 .where = printable_line(folder),
                 .fix = "look at its rights and the room on its disk, or name another: -d FOLDER",
                 .code = ExitCode::usage});
  ::close(file);
}

// The command that reaches a host, as Open MPI finds it.
Words agent_of(const Environment& environment) {
  Words agent;
  for (const char* name : {"OMPI_MCA_plm_rsh_agent", "PRTE_MCA_plm_ssh_agent"}) {
    if (!agent.empty()) break;
    std::string value = value_in(environment, name);
    std::ranges::replace_if(
        value, [](char c) { return c == '\t' || c == '\n'; }, ' ');
    for (const std::string& word : split(value, ' ')) {
      if (!word.empty()) agent.push_back(word);
    }
  }
  if (agent.empty()) agent = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10"};
  return agent;
}

/// Prints the output of a program, with two blanks before each line. Lines are printed as soon as they end.
class IndentedLines {
 public:
  void take(const std::string& bytes) {
    for (const char c : bytes) {
      if (line_.empty()) line_ = "  ";
      line_ += c;
      if (c == '\n') print(std::exchange(line_, ""));
    }
  }
  /// Prints the last line, which has no end.
  void finish() const { print(line_); }

 private:
  std::string line_;
};

// Raises the limit on open files if there are many hosts. Two programs for each host have three pipes each.
void allow_files_for(std::size_t hosts) {
  constexpr rlim_t kOfHost = 6, kOthers = 64;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= kOthers + kOfHost * hosts) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// One run of launch/check-hosts.
class HostsCheck {
 public:
  HostsCheck(CheckOrder order, const Environment& environment, Requests& requests);
  /// Returns the exit code.
  int run();

 private:
  bool hosts_are_fine();
  bool connections_are_fine();
  /// Runs `trainer verify` on all ranks and prints its output. Returns whether it succeeded.
  bool messages_arrive();

  CheckOrder order_;
  const Environment& environment_;
  Requests& requests_;
  std::vector<HostSlots> hosts_;
  std::vector<std::string> paths_;
  RemoteShell shell_;
  TokenFile token_;
  HostAnswer here_;
  int ranks_ = 0;
};

HostsCheck::HostsCheck(CheckOrder order, const Environment& environment, Requests& requests)
    : order_(std::move(order)),
      environment_(environment),
      requests_(requests),
      hosts_(read_hostfile(order_.hostfile)),
      paths_(existing_paths(order_.config, environment)),
      shell_(agent_of(environment)),
      token_(order_.folder) {
  for (const HostSlots& host : hosts_) ranks_ += host.slots;
  allow_files_for(hosts_.size());
}

int HostsCheck::run() {
  const std::string count = std::to_string(hosts_.size()) + " hosts";
  bool fine = hosts_are_fine() && (hosts_.size() == 1 || connections_are_fine());
  if (!fine && !requests_.stop()) print(count + ": something is wrong, see above\n");
  if (fine && order_.sends_messages) {
    fine = messages_arrive();
    if (!fine && !requests_.stop())
      print(count + ": each host is fine, but a job on all of them fails, see above\n");
  }
  if (requests_.stop()) return kSignalBase + *requests_.stop();
  if (fine) print(count + ", " + std::to_string(ranks_) + " ranks: fine\n");
  return static_cast<int>(fine ? ExitCode::ok : ExitCode::failure);
}

bool HostsCheck::hosts_are_fine() {
  const Question question{
      .program = order_.program, .folder = order_.folder, .token = token_.name(), .paths = paths_};
  const std::string script = facts_script(question);
  std::deque<Child> shells;
  for (const HostSlots& host : hosts_)
    shells.emplace_back(Child::Start{.words = shell_.on(host), .input = script});
  shells.emplace_back(Child::Start{.words = {"sh", "-s"}, .input = script});
  serve(shells, requests_);
  if (requests_.stop()) return false;

  if (shells.back().is_late() || shells.back().code() != 0) {
    throw Error(
        {.what = "this host could not be asked",
         .expected = "answers of sh within " + std::to_string(Child::kUsualLimit.count()) + " seconds",
         .found = shells.back().is_late() ? "no end" : "exit code " + std::to_string(shells.back().code()),
         .where = "the host that checks",
         .fix = "see which of df, nvidia-smi, hostname and ls hangs or fails here"});
  }
  here_ = HostAnswer(shells.back().output());
  HostJudge judge(question, here_, line_of(shell_.agent()));
  bool fine = true;
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    const Child& shell = shells[i];
    print(printable_line(hosts_[i].name + " (" + std::to_string(hosts_[i].slots) + " ranks)") + "\n");
    const auto findings = judge.judge(hosts_[i], {.answer = HostAnswer(shell.output()),
                                                  .code = shell.code(),
                                                  .is_late = shell.is_late(),
                                                  .errors = shell.errors(),
                                                  .began = shell.began(),
                                                  .ended = shell.ended()});
    print(findings);
    fine = fine && !has_fault(findings);
  }
  return fine;
}

bool HostsCheck::connections_are_fine() {
  print("connections between " + std::to_string(hosts_.size()) + " hosts\n");
  const std::string& mpi = here_.value("mpi");
  const Connections connections(hosts_, shell_, token_.name(),
                                port_ranges(mpi, order_.mpirun_options, environment_), mpi);
  const std::vector<Finding> findings = connections.try_all(requests_);
  if (requests_.stop()) return false;
  print(findings);
  return !has_fault(findings);
}

bool HostsCheck::messages_arrive() {
  print("messages between " + std::to_string(ranks_) + " ranks\n");
  // The file itself, because others look for a process with its name.
  Words words{fs::read_symlink("/proc/self/exe").string(), "--called", order_.launcher,       "--hostfile",
              fs::canonical(order_.hostfile).string(),     "-np",      std::to_string(ranks_)};
  words.insert(words.end(), order_.mpirun_options.begin(), order_.mpirun_options.end());
  words.insert(words.end(), {order_.program, "verify"});
  std::deque<Child> jobs;
  Child& job = jobs.emplace_back(Child::Start{
      .words = std::move(words), .merges_errors = true, .folder = order_.folder, .limit = order_.seconds});
  IndentedLines lines;
  serve(jobs, requests_, [&] {
    lines.take(job.take_output());
    return false;
  });
  lines.finish();
  if (job.is_late())
    print(
        lines_of(fault("messages", "they did not end within " + std::to_string(order_.seconds.count()) + " s",
                       advice_on_ports(here_.value("mpi")))));
  return job.code() == 0 && !job.is_late();
}

}  // namespace

int check_hosts(const Words& words, const std::string& called, const Environment& environment) {
  try {
    std::string complaint;
    const std::optional<CheckCall> call = read_check_call(words, complaint);
    if (!call) {
      if (!complaint.empty()) write_error(printable_line(called + ": " + complaint) + "\n");
      write_error(usage_of_check());
      return static_cast<int>(ExitCode::usage);
    }
    const CheckOrder order = order_of(*call, called, environment);
    Requests requests;
    ::signal(SIGQUIT, SIG_IGN);  // it would leave the file of the check and its processes behind
    return HostsCheck(order, environment, requests).run();
  } catch (const std::exception& e) {
    return tell_exception(e);
  }
}

}  // namespace octet::launch
