#include "octet/base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/files.h"
#include "octet/base/log_rows.h"
#include "octet/base/printable.h"

namespace octet::log {
namespace {

using Level = spdlog::level::level_enum;

/// A line that was printed before the file was opened.
struct Early {
  spdlog::log_clock::time_point time;
  Level level;
  std::string text;
};

constexpr std::size_t kMostEarly = 10'000;  // lines; commands without a file may print more

struct State {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> screen;
  std::shared_ptr<spdlog::logger> file;
  std::vector<Early> early;
  std::string file_for_errors;
  bool speaks = true;
  int rows = 0;  ///< printed
  void (*before)() = nullptr;
  void (*after)() = nullptr;
  State() {
    screen = std::make_shared<spdlog::logger>("octet", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    screen->set_pattern("%v");
    screen->set_level(spdlog::level::debug);
  }
};

State& state() {
  static State s;
  return s;
}

std::atomic<int> file_descriptor = -1;  // of the file, for signal handlers

/// The line on the screen. Warnings and errors start with their level.
std::string file_line(Level level, const std::string& text) {
  return level == spdlog::level::info    ? "info " + text
         : level == spdlog::level::debug ? "debug " + text
                                         : text;
}

void open(State& s, const std::string& path) {
  s.file = std::make_shared<spdlog::logger>("file",
                                            std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false));
  s.file->set_pattern("%Y-%m-%d %H:%M:%S.%e %v");
  s.file->set_level(spdlog::level::debug);
}

void keep(State& s, Level level, const std::string& text) {
  if (!s.file && level == spdlog::level::err && !s.file_for_errors.empty() && path_exists(s.file_for_errors))
    open(s, s.file_for_errors);
  if (s.file) {
    s.file->log(level, file_line(level, text));
    s.file->flush();
  } else if (s.early.size() < kMostEarly) {
    s.early.push_back({spdlog::log_clock::now(), level, text});
  }
}

void say(Level level, const char* prefix, const std::string& line) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.speaks && level < spdlog::level::err) return;
  const std::string shown = prefix + printable(line);
  keep(s, level, shown);
  if (level < spdlog::level::info && (line.empty() || environment_variable("OCTETRUN_VERBOSE") == nullptr))
    return;
  if (s.before) s.before();
  s.screen->log(level, shown);
  s.screen->flush();
  s.rows += rows_of(shown);
  if (s.after) s.after();
}

}  // namespace

void set_rank(int /*rank*/, bool speaks) {
  const std::lock_guard lock(state().mutex);
  state().speaks = speaks;
}

void open_file(const std::string& path) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  open(s, path);
  for (const Early& line : s.early) s.file->log(line.time, {}, line.level, file_line(line.level, line.text));
  s.file->flush();
  s.early.clear();
  const int before = file_descriptor.exchange(::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC));
  if (before >= 0) ::close(before);
}

void open_file_for_errors(const std::string& path) {
  const std::lock_guard lock(state().mutex);
  state().file_for_errors = path;
}

void set_hooks(void (*before)(), void (*after)()) {
  const std::lock_guard lock(state().mutex);
  state().before = before;
  state().after = after;
}

int rows_of(const std::string& line) {
  const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xC0) != 0x80; });  // of UTF-8
  return static_cast<int>((std::max<std::ptrdiff_t>(columns, 1) + 79) / 80);
}

int rows_printed() {
  const std::lock_guard lock(state().mutex);
  return state().rows;
}

void info(const std::string& line) {
  say(spdlog::level::info, "", line);
}
void warn(const std::string& line) {
  say(spdlog::level::warn, "warning: ", line);
}
void error(const std::string& line) {
  say(spdlog::level::err, "error: ", line);
}
void debug(const std::string& line) {
  say(spdlog::level::debug, "", line);
}

void write_from_handler(const char* text, std::size_t size) {
  // Writing to a closed terminal fails. The error is ignored.
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, text, size);
  if (const int file = file_descriptor; file >= 0) written = ::write(file, text, size);
}

}  // namespace octet::log
