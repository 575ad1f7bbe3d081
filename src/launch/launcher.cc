#include "octet/launch/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "cleanup.h"
#include "delivery.h"
#include "ending.h"
#include "hostfiles.h"
#include "listener.h"
#include "mpi.h"
#include "octet/base/error.h"
#include "octet/base/terminal.h"
#include "octet/base/timing.h"
#include "requests.h"
#include "standard_streams.h"

namespace octet::launch {
namespace {

using std::chrono::milliseconds;

/// Reads mpirun's standard error in a thread: a reader of our standard error may be slow, and requests must
/// not wait for it. The thread shares its state with this object, because it may live longer.
class Listening {
 public:
  Listening(int file, std::string arguments, bool bar)
      : state_(std::make_shared<State>(file, std::move(arguments), bar)) {
    std::thread([state = state_] { state->run(); }).detach();
  }

  bool mpi_has_failed() const { return state_->mpi_has_failed; }
  /// Waits for the last lines, at most three seconds: processes that ranks have started may hold the pipe
  /// open. Returns null if standard error accepts nothing.
  const Listener* finish() {
    constexpr milliseconds kLines(2000), kReader(1000);
    if (is_done_within(kLines)) return &state_->listener;
    state_->is_ended = true;
    return is_done_within(kReader) ? &state_->listener : nullptr;
  }

 private:
  struct State {
    State(int pipe, std::string arguments, bool bar)
        : file(pipe), listener(std::move(arguments), bar, [](std::string_view text) { write_error(text); }) {}
    void run();

    const int file;
    std::atomic<bool> mpi_has_failed = false, is_ended = false, is_done = false;
    Listener listener;
  };

  bool is_done_within(milliseconds patience) const {
    constexpr milliseconds kMoment(5);
    const auto end = Clock::now() + patience;
    while (!state_->is_done && Clock::now() < end) std::this_thread::sleep_for(kMoment);
    return state_->is_done;
  }

  std::shared_ptr<State> state_;
};

void Listening::State::run() {
  std::array<char, 65536> bytes{};
  while (!is_ended) {
    constexpr int kLook = 100;
    pollfd readable{.fd = file, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, kLook) <= 0) continue;
    const ssize_t n = ::read(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    listener.take({bytes.data(), static_cast<std::size_t>(n)});
    if (listener.mpi_has_failed()) mpi_has_failed = true;
  }
  listener.finish();
  is_done = true;
}

/// Copies mpirun's standard output in a thread, without mpirun's own line (OutputFilter). Without a reader
/// the bytes are discarded: a closed pipe would make mpirun fail and end the run.
class Output {
 public:
  explicit Output(int file) : state_(std::make_shared<State>(file)) {
    std::thread([state = state_] { state->run(); }).detach();
  }

  /// Waits until all bytes are written. After a signal it waits only a second, because there may be no
  /// reader. mpirun has already ended.
  void finish(Requests& requests) {
    constexpr milliseconds kMoment(2), kAfterSignal(1000);
    state_->is_ended = true;
    std::optional<Clock::time_point> signal;
    while (!state_->is_done && (!signal || Clock::now() - *signal < kAfterSignal)) {
      if (!requests.take().empty() && !signal) signal = Clock::now();
      std::this_thread::sleep_for(kMoment);
    }
  }

 private:
  struct State {
    explicit State(int pipe) : file(pipe) {}
    void run();

    const int file;
    std::atomic<bool> is_ended = false, is_done = false;
  };

  std::shared_ptr<State> state_;
};

void Output::State::run() {
  std::array<char, 65536> bytes{};
  OutputFilter filter;
  bool is_read = true;
  while (true) {
    constexpr int kLook = 100;
    // Processes that ranks have started may hold the pipe open after mpirun's end.
    const bool is_last = is_ended;
    pollfd readable{.fd = file, .events = POLLIN, .revents = 0};
    if (::poll(&readable, 1, is_last ? 0 : kLook) <= 0) {
      if (is_last) break;
      continue;
    }
    const ssize_t n = ::read(file, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    const std::string text = filter.take({bytes.data(), static_cast<std::size_t>(n)});
    is_read = is_read && write_all(STDOUT_FILENO, text);
  }
  if (is_read) write_all(STDOUT_FILENO, filter.finish());
  is_done = true;
}

// Returns pointers to the words and a final null pointer, for exec.
std::vector<char*> pointers_to(Words& words) {
  std::vector<char*> pointers;
  pointers.reserve(words.size() + 1);
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// mpirun's process. It runs in a new session, because a terminal's Ctrl-C would make it kill the ranks.
class Job {
 public:
  Job(const Mpirun& mpirun, const Settings& settings, const Words& words, const Requests& requests,
      const Guard& guard);

  /// Returns the pipe of its standard error.
  int errors() const { return errors_; }
  /// Returns the pipe of its standard output.
  int output() const { return output_; }
  pid_t pid() const { return pid_; }
  /// Whether it has ended. If so, code() and was_killed() are valid.
  bool has_ended();
  int code() const { return code_; }
  bool was_killed() const { return was_killed_; }

 private:
  pid_t pid_ = -1;
  int errors_ = -1, output_ = -1;
  bool ended_ = false, was_killed_ = false;
  int code_ = 0;
};

Job::Job(const Mpirun& mpirun, const Settings& settings, const Words& words, const Requests& requests,
         const Guard& guard) {
  Words arguments{mpirun.file};
  arguments.insert(arguments.end(), settings.options.begin(), settings.options.end());
  arguments.insert(arguments.end(), words.begin(), words.end());
  Words variables;
  for (const auto& [name, value] : settings.variables) variables.push_back(name + "=" + value);
  const std::vector<char*> argument_pointers = pointers_to(arguments),
                           variable_pointers = pointers_to(variables);
  std::array<int, 2> errors{}, output{}, started{};  // `started` reports why exec failed
  const bool piped = ::pipe2(errors.data(), O_CLOEXEC) == 0 && ::pipe2(output.data(), O_CLOEXEC) == 0 &&
                     ::pipe2(started.data(), O_CLOEXEC) == 0;
  if (piped) pid_ = ::fork();
  if (piped && pid_ == 0) {
    guard.watch(::getpid());
    ::setsid();
    requests.hand_over_to_mpirun();
    ::dup2(output[1], STDOUT_FILENO);
    ::dup2(errors[1], STDERR_FILENO);
    ::execve(mpirun.file.c_str(), argument_pointers.data(), variable_pointers.data());
    const int why = errno;
    if (::write(started[1], &why, sizeof why) < 0) ::_exit(1);
    ::_exit(1);
  }
  int why = errno;
  bool failed = pid_ < 0;
  if (!failed) {
    for (const int end : {errors[1], output[1], started[1]}) ::close(end);
    errors_ = errors[0];
    output_ = output[0];
    failed = ::read(started[0], &why, sizeof why) == static_cast<ssize_t>(sizeof why);
    ::close(started[0]);
  }
  if (failed)
    throw Error({.what = "mpirun cannot be started",
                 .expected = "a program that this machine can run",
                 .found = std::strerror(why),
                 .where = printable_line(mpirun.file),
                 .fix = "check this file, or name another one in OCTETRUN_MPIRUN_FILE",
                 .code = ExitCode::usage});
}

bool Job::has_ended() {
  int status = 0;
  if (ended_ || ::waitpid(pid_, &status, WNOHANG) != pid_) return ended_;
  was_killed_ = WIFSIGNALED(status);
  code_ = was_killed_ ? kCodeOfSignal + WTERMSIG(status) : WEXITSTATUS(status);
  return ended_ = true;
}

// Whether mpirun itself received a signal to end. It has these signals blocked, so that its ranks can save.
bool was_asked_directly(pid_t mpirun) {
  const std::uint64_t pending = signals_of(mpirun, "ShdPnd");
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) {
    if ((pending >> (signal - 1) & 1) != 0) return true;
  }
  return false;
}

// Passes requests to the ranks, and ends a job that hangs, until mpirun has ended.
void watch_over(Job& job, const Listening& listening, Requests& requests, Mpi mpi, bool hosts) {
  constexpr milliseconds kLook(100), kFailed(5000), kBetweenHosts(300);
  Delivery delivery(mpi, job.pid(), hosts);
  SilentHost silent_host(job.pid());
  std::optional<Clock::time_point> failed;
  Clock::time_point looked{};
  bool was_asked = false;
  while (!job.has_ended()) {
    pollfd file{.fd = requests.file(), .events = POLLIN, .revents = 0};
    ::poll(&file, 1, static_cast<int>(kLook.count()));
    for (const int signal : requests.take()) delivery.ask(signal == SIGUSR1 ? SIGUSR1 : SIGUSR2);
    if (job.has_ended()) break;
    if (!was_asked && was_asked_directly(job.pid())) {
      was_asked = true;
      delivery.ask(SIGUSR2);
    }
    delivery.deliver();
    const auto now = Clock::now();
    if (listening.mpi_has_failed() && !failed) failed = now;
    // mpirun may wait forever for the other ranks.
    if (failed && now - *failed > kFailed) end_job(job.pid(), kMpiFailed);
    if (hosts && now - looked > kBetweenHosts) {
      looked = now;
      if (silent_host.is_waited_for()) end_job(job.pid(), kHostSilent);
    }
  }
}

int run(const Words& words, const std::string& called, Environment environment) {
  Requests requests;
  const int ranks = require_usable_call(words, environment);
  const bool named_hosts = has_hosts(words, environment);
  require_limits(named_hosts ? 1 : ranks, words);
  if (!is_only_launcher(words, called, environment)) return static_cast<int>(ExitCode::usage);
  const auto stopped = [&] {
    if (!requests.stop_is_asked()) return false;
    write_error("stopped before the first step, as asked: nothing is lost\n");
    return true;
  };
  if (stopped()) return static_cast<int>(ExitCode::preempted);
  const Mpirun mpirun = find_mpirun(words, environment, requests);
  if (stopped()) return static_cast<int>(ExitCode::preempted);
  Settings settings = settings_for(mpirun, words, std::move(environment), named_hosts, requests);
  for (const std::string& warning : settings.warnings)
    write_error("warning: " + printable_line(warning) + "\n");
  if (stopped()) return static_cast<int>(ExitCode::preempted);

  const auto began = std::chrono::system_clock::now();
  Guard guard(settings.sessions, began);
  const Words readable_words = with_readable_hostfiles(words, settings.variables, settings.mpi);
  Job job(mpirun, settings, readable_words, requests, guard);
  const bool hosts = settings.mpi == Mpi::open && named_hosts;
  Output output(job.output());
  Listening listening(job.errors(), line_of(words), settings.variables.contains("OCTETRUN_BAR_COLUMNS"));
  watch_over(job, listening, requests, settings.mpi, hosts);
  const Listener* heard = listening.finish();
  output.finish(requests);
  const Leftovers leftovers(settings.sessions, job.pid(), began);
  if (job.code() != 0) leftovers.remove_pmix_files();
  requests.take();
  const Ending ending{.code = job.code(),
                      .was_killed = job.was_killed(),
                      .mpirun = job.pid(),
                      .mpi = settings.mpi,
                      .stop = requests.stop(),
                      .cause = heard == nullptr ? Cause::answered : heard->cause(),
                      .words_of_ssh = heard == nullptr ? Words{} : heard->words_of_ssh(),
                      .words = words,
                      .called = called};
  const int code = conclude(ending, leftovers, [](const std::string& text) { write_error(text); });
  guard.dismiss();
  return code;
}

}  // namespace

Environment environment_of(const char* const* variables) {
  Environment environment;
  for (; *variables != nullptr; ++variables) {
    const std::string_view variable = *variables;
    const std::size_t equals = variable.find('=');
    if (equals != std::string_view::npos)
      environment.emplace(variable.substr(0, equals), variable.substr(equals + 1));
  }
  return environment;
}

int launch(const Words& words, const std::string& called, Environment environment) {
  try {
    return run(words, called, std::move(environment));
  } catch (const std::exception& e) {
    return tell_exception(e);
  }
}

}  // namespace octet::launch
