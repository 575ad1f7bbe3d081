// Programs that this process starts and reads, several at a time.
#pragma once

#include <poll.h>
#include <sys/types.h>

#include <array>
#include <chrono>
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "arguments.h"
#include "octet/base/timing.h"
#include "requests.h"

namespace octet::launch {

/// A program with pipes as its standard streams, in a new process group. The destructor kills this process
/// group. While a Child exists, SIGPIPE must be ignored and SIGCHLD blocked (Requests does both).
class Child {
 public:
  struct Start {
    Words words;                               ///< the program, which is looked up on PATH, and its arguments
    std::optional<std::string> input = {};     ///< standard input; by default the input of this process
    bool holds_input = false;                  ///< keeps standard input open until close_input()
    bool merges_errors = false;                ///< standard error goes to output()
    std::string folder = {};                   ///< the working folder; by default that of this process
    std::chrono::seconds limit = kUsualLimit;  ///< the program receives SIGTERM after this time
  };
  static constexpr std::chrono::seconds kUsualLimit{30};
  /// Bytes of each stream that are kept; later bytes are dropped.
  static constexpr std::size_t kMostOutput = std::size_t{4} << 20;
  /// A program that ignores its signal is killed after this time.
  static constexpr std::chrono::seconds kPatience{10};

  /// Starts the program. A program that cannot be executed has ended with code 127 and a message in errors().
  /// Throws Error if the system gives no pipes.
  explicit Child(Start start);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  /// What the program has written so far.
  const std::string& output() const { return output_.bytes; }
  const std::string& errors() const { return errors_.bytes; }
  /// Returns output() and empties it.
  std::string take_output();

  /// Whether the program has ended. Other processes may still have its pipes open; they are not read.
  bool has_ended() const { return has_ended_; }
  /// Whether the program exceeded its time limit.
  bool is_late() const { return is_late_; }
  /// Returns its exit code, or 128 + N if signal N ended it. Valid if has_ended().
  int code() const { return code_; }
  /// Seconds since 1970 at the start, and at the end if has_ended().
  double began() const { return began_; }
  double ended() const { return ended_; }

  /// Closes standard input as soon as the rest of `input` is written.
  void close_input() { holds_input_ = false; }
  /// Sends a signal to the process group, and kills it after kPatience.
  void end_by(int signal);

  /// Returns entries for poll(). Closed pipes have negative numbers, which poll() ignores.
  std::array<pollfd, 3> files() const;
  /// Reads and writes without waiting, looks at the time, and finds out whether the program has ended.
  void serve();

 private:
  struct Pipe {
    int file = -1;
    std::string bytes;
    void read();
    void close();
  };

  void write_input();
  void look_at_time();

  pid_t pid_ = -1;
  int input_ = -1;
  std::string rest_of_input_;
  bool holds_input_;
  Pipe output_, errors_;
  Clock::time_point deadline_;
  std::optional<Clock::time_point> killed_at_;
  bool is_late_ = false, has_ended_ = false;
  int code_ = 0;
  double began_ = 0, ended_ = 0;
};

/// Serves the children until each has ended, or `is_enough` returns true. Calls `is_enough` after each event,
/// and at least ten times a second. If a stop is requested, sends the signal to each child once.
void serve(std::deque<Child>& children, Requests& requests, const std::function<bool()>& is_enough = {});

}  // namespace octet::launch
