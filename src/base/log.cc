#include "octet/base/log.h"

#include <fcntl.h>
#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "octet/base/environment.h"
#include "octet/base/files.h"
#include "octet/base/terminal.h"

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
constexpr int kColumns = 80;
constexpr int kTable = 15;       // rows reserved for the table of settings, which begin_table() announces
constexpr int kForTraining = 2;  // rows before the table that only Importance::training may use

/// A message that waits for begin_table().
struct Held {
  Level level;
  Importance importance;
  std::string text;
};

/// The screen of a run before its first step.
struct Start {
  bool active = false;
  bool table = false;  ///< begin_table() was called
  int most = 0;        ///< limit of rows
  int before = 0;      ///< State::rows when the limit began
  std::vector<Held> held;
  int warnings = 0, notes = 0;  ///< numbers of messages that were not printed
};

struct State {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> screen;
  std::shared_ptr<spdlog::logger> file;
  std::vector<Early> early;
  std::string file_for_errors;
  bool speaks = true;
  int rows = 0;  ///< rows printed so far
  Start start;
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

std::atomic<int> file_descriptor = -1;  // of training.log, for write_from_handler()

/// Returns the line for the file, which starts with its level. Warnings and errors already have theirs.
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

/// Writes a line to the file, or keeps it until open_file() is called.
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

void print(State& s, Level level, const std::string& shown) {
  if (s.before) s.before();
  s.screen->log(level, shown);
  s.screen->flush();
  s.rows += rows_of(shown);
  if (s.after) s.after();
}

bool verbose() {
  return environment_variable("OCTETRUN_VERBOSE") != nullptr;
}

void count(Start& start, Level level) {
  ++(level >= spdlog::level::warn ? start.warnings : start.notes);
}

std::string counted(int count, const char* word) {
  return std::to_string(count) + " more " + word + (count == 1 ? "" : "s");
}

/// Prints the number of messages that were not printed.
void print_count(State& s) {
  Start& start = s.start;
  if (start.warnings + start.notes == 0) return;
  std::string text;
  if (start.warnings > 0) text = counted(start.warnings, "warning");
  if (start.notes > 0) text += (text.empty() ? "" : ", ") + counted(start.notes, "note");
  text += ": read training.log, or type trainer lint CONFIG";
  keep(s, spdlog::level::info, text);
  print(s, spdlog::level::info, text);
}

/// Shortens a text to at most `rows` rows.
std::string cut(const std::string& text, int rows) {
  std::string begin;
  for (const char c : text) {
    if (rows_of(begin + c + "…") > rows) break;
    begin += c;
  }
  return begin + "…";
}

/// Prints the most important held messages into `room` rows, and counts the others. One row stays free for
/// print_count() if messages are left.
void print_held(State& s, int room) {
  Start& start = s.start;
  std::vector<Held> held = std::move(start.held);
  start.held.clear();
  std::ranges::stable_sort(held, std::greater{}, &Held::importance);
  int need = 0;
  for (const Held& message : held) need += rows_of(message.text);
  if (need > room) --room;  // for the count
  bool full = false;
  for (const Held& message : held) {
    const int rows = rows_of(message.text);
    if (!full && rows <= room) {
      print(s, message.level, message.text);
      room -= rows;
      continue;
    }
    if (!full && room > 0) print(s, message.level, cut(message.text, room));
    full = true;
    count(start, message.level);
  }
}

void end(State& s) {
  if (!s.start.active) return;
  // Without a file, messages appear only on the screen, so all are printed.
  print_held(s, s.file ? s.start.most - (s.rows - s.start.before) : std::numeric_limits<int>::max());
  print_count(s);
  s.start = {};
}

/// Returns true if a message may be printed now. Otherwise keeps it for begin_table(), or counts it.
bool admits(State& s, Level level, Importance importance, const std::string& shown) {
  Start& start = s.start;
  if (!start.active || importance == Importance::waiting) return true;
  const int used = s.rows - start.before + rows_of(shown);
  if (start.table) {
    if (level < spdlog::level::warn) return true;  // a row of the table
    if (used + 1 <= start.most) return true;
    count(start, level);
    return false;
  }
  const int early = start.most - kTable - 1;
  if (importance == Importance::training && used <= early) return true;
  if (importance == Importance::warning && used <= early - kForTraining) return true;
  start.held.push_back({level, importance, shown});
  return false;
}

void say(Level level, const char* prefix, const std::string& line, Importance importance) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.speaks && level < spdlog::level::err) return;
  const std::string shown = prefix + printable(line);
  keep(s, level, shown);
  if (level < spdlog::level::info && (line.empty() || !verbose())) return;
  if (level >= spdlog::level::err) {
    end(s);
  } else if (level >= spdlog::level::info && !admits(s, level, importance, shown)) {
    return;
  }
  print(s, level, shown);
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

int rows_of(const std::string& text) {
  int rows = 0, columns = 0;
  const auto end_line = [&] { rows += (std::max(std::exchange(columns, 0), 1) + kColumns - 1) / kColumns; };
  for (const char c : text) {
    if (c == '\n') {
      end_line();
    } else if ((c & 0xC0) != 0x80) {  // counts each UTF-8 character once
      ++columns;
    }
  }
  end_line();
  return rows;
}

StartScreen::StartScreen(int rows) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  s.start = {.active = !verbose(), .most = rows, .before = s.rows};
}

StartScreen::~StartScreen() {
  end_start();
}

void begin_table(int rows) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.start.active) return;
  print_held(s, s.start.most - (s.rows - s.start.before) - rows);
  s.start.table = true;
}

void end_start() {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  end(s);
}

void info(const std::string& line, Importance importance) {
  say(spdlog::level::info, "", line, importance);
}
void warn(const std::string& line, Importance importance) {
  say(spdlog::level::warn, "warning: ", line, importance);
}
void error(const std::string& line) {
  say(spdlog::level::err, "error: ", line, Importance::waiting);
}
void debug(const std::string& line) {
  say(spdlog::level::debug, "", line, Importance::note);
}

void write_from_handler(const char* text, std::size_t size) {
  // Writing to a closed terminal fails. The error is ignored.
  [[maybe_unused]] auto written = ::write(STDERR_FILENO, text, size);
  if (const int file = file_descriptor; file >= 0) written = ::write(file, text, size);
}

}  // namespace octet::log
