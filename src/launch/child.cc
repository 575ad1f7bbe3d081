#include "child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>
#include <vector>

#include "octet/base/error.h"

namespace octet::launch {
namespace {

constexpr int kNotExecuted = 127, kSignalCodes = 128;

double now_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// Ends of a pipe. `own` is this process's end, and does not block.
struct PipeEnds {
  int own = -1, other = -1;
};

PipeEnds new_pipe(bool own_end_reads) {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0)
    throw Error({.what = "a program cannot be started",
                 .expected = "pipes for its input and output",
                 .found = std::strerror(errno),
                 .fix = "raise the number of open files (ulimit -n), or name fewer hosts"});
  const PipeEnds pipe{.own = ends[own_end_reads ? 0 : 1], .other = ends[own_end_reads ? 1 : 0]};
  ::fcntl(pipe.own, F_SETFL, O_NONBLOCK);
  return pipe;
}

/// Settings of a new process: its streams, its folder, no blocked signals, and a process group of its own.
class SpawnSettings {
 public:
  SpawnSettings() {
    check(::posix_spawn_file_actions_init(&files_) == 0 && ::posix_spawnattr_init(&attributes_) == 0,
          "settings of a process");
    sigset_t none, defaults;
    ::sigemptyset(&none);
    ::sigemptyset(&defaults);
    ::sigaddset(&defaults, SIGPIPE);
    ::sigaddset(&defaults, SIGQUIT);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &defaults);
    ::posix_spawnattr_setpgroup(&attributes_, 0);
    ::posix_spawnattr_setflags(&attributes_,
                               POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSettings() {
    ::posix_spawn_file_actions_destroy(&files_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  SpawnSettings(const SpawnSettings&) = delete;
  SpawnSettings& operator=(const SpawnSettings&) = delete;

  void set_stream(int stream, int file) { ::posix_spawn_file_actions_adddup2(&files_, file, stream); }
  void set_folder(const std::string& folder) {
    ::posix_spawn_file_actions_addchdir_np(&files_, folder.c_str());
  }
  /// Starts the program. Returns 0 and sets `pid`, or returns an error number.
  int spawn(Words& words, pid_t& pid) const {
    std::vector<char*> pointers;
    pointers.reserve(words.size() + 1);
    for (std::string& word : words) pointers.push_back(word.data());
    pointers.push_back(nullptr);
    return ::posix_spawnp(&pid, words.front().c_str(), &files_, &attributes_, pointers.data(), environ);
  }

 private:
  posix_spawn_file_actions_t files_{};
  posix_spawnattr_t attributes_{};
};

}  // namespace

Child::Child(Start start)
    : rest_of_input_(start.input.value_or("")),
      holds_input_(start.holds_input),
      deadline_(Clock::now() + start.limit),
      began_(now_since_1970()) {
  SpawnSettings settings;
  std::vector<int> others;
  if (start.input) {
    const PipeEnds input = new_pipe(false);
    input_ = input.own;
    others.push_back(input.other);
    settings.set_stream(STDIN_FILENO, input.other);
  }
  const PipeEnds output = new_pipe(true);
  output_.file = output.own;
  others.push_back(output.other);
  settings.set_stream(STDOUT_FILENO, output.other);
  if (start.merges_errors) {
    settings.set_stream(STDERR_FILENO, output.other);
  } else {
    const PipeEnds errors = new_pipe(true);
    errors_.file = errors.own;
    others.push_back(errors.other);
    settings.set_stream(STDERR_FILENO, errors.other);
  }
  if (!start.folder.empty()) settings.set_folder(start.folder);
  const int error = settings.spawn(start.words, pid_);
  for (const int file : others) ::close(file);
  if (error == 0) return;
  pid_ = -1;
  has_ended_ = true;
  code_ = kNotExecuted;
  ended_ = began_;
  errors_.bytes = start.words.front() + ": " + std::strerror(error);
}

Child::~Child() {
  if (!has_ended_) {
    ::kill(-pid_, SIGKILL);
    while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  }
  output_.close();
  errors_.close();
  if (input_ >= 0) ::close(input_);
}

std::string Child::take_output() {
  return std::exchange(output_.bytes, "");
}

void Child::end_by(int signal) {
  if (has_ended_) return;
  ::kill(-pid_, signal);
  if (!killed_at_) killed_at_ = Clock::now() + kPatience;
}

std::array<pollfd, 3> Child::files() const {
  return {pollfd{.fd = rest_of_input_.empty() ? -1 : input_, .events = POLLOUT, .revents = 0},
          pollfd{.fd = output_.file, .events = POLLIN, .revents = 0},
          pollfd{.fd = errors_.file, .events = POLLIN, .revents = 0}};
}

void Child::serve() {
  write_input();
  if (has_ended_) return;
  int status = 0;
  const bool ends = ::waitpid(pid_, &status, WNOHANG) == pid_;
  output_.read();
  errors_.read();
  if (!ends) return look_at_time();
  has_ended_ = true;
  ended_ = now_since_1970();
  code_ = WIFSIGNALED(status) ? kSignalCodes + WTERMSIG(status) : WEXITSTATUS(status);
  output_.close();
  errors_.close();
}

void Child::write_input() {
  while (input_ >= 0 && !rest_of_input_.empty()) {
    const ssize_t n = ::write(input_, rest_of_input_.data(), rest_of_input_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    rest_of_input_.erase(0, n < 0 ? std::string::npos : static_cast<std::size_t>(n));
  }
  if (input_ < 0 || (holds_input_ && !has_ended_)) return;
  ::close(input_);
  input_ = -1;
}

void Child::look_at_time() {
  const auto now = Clock::now();
  if (killed_at_ && now > *killed_at_) ::kill(-pid_, SIGKILL);
  if (is_late_ || now < deadline_) return;
  is_late_ = true;
  end_by(SIGTERM);
}

void Child::Pipe::read() {
  std::array<char, 65536> piece{};
  // A program that writes without end must take neither the memory nor the time of the others.
  constexpr int kPieces = 16;
  for (int i = 0; i < kPieces && file >= 0; ++i) {
    const ssize_t n = ::read(file, piece.data(), piece.size());
    if (n > 0) {
      bytes.append(piece.data(), std::min(static_cast<std::size_t>(n), kMostOutput - bytes.size()));
    } else if (n == 0) {
      close();
    } else if (errno != EINTR) {
      return;
    }
  }
}

void Child::Pipe::close() {
  if (file >= 0) ::close(file);
  file = -1;
}

void serve(std::deque<Child>& children, Requests& requests, const std::function<bool()>& is_enough) {
  constexpr int kLook = 100;
  bool is_told = false;
  while (true) {
    for (Child& child : children) child.serve();
    if ((is_enough && is_enough()) || std::ranges::all_of(children, &Child::has_ended)) return;
    std::vector<pollfd> files{pollfd{.fd = requests.file(), .events = POLLIN, .revents = 0}};
    for (const Child& child : children) {
      const auto more = child.files();
      files.insert(files.end(), more.begin(), more.end());
    }
    ::poll(files.data(), files.size(), kLook);
    if (!requests.stop_is_asked() || is_told) continue;
    is_told = true;
    for (Child& child : children) child.end_by(*requests.stop());
  }
}

}  // namespace octet::launch
