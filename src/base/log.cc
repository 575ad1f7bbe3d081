#include "octet/base/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <mutex>

#include "octet/base/printable.h"

namespace octet::log {
namespace {

struct State {
  std::mutex mutex;
  std::shared_ptr<spdlog::logger> screen;
  std::shared_ptr<spdlog::logger> file;
  bool speaks = true;
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

void say(spdlog::level::level_enum level, const char* prefix, const std::string& line) {
  State& s = state();
  const std::lock_guard lock(s.mutex);
  if (!s.speaks && level < spdlog::level::err) return;
  const std::string shown = printable(line);
  if (s.file) {
    s.file->log(level, shown);
    s.file->flush();
  }
  if (level < spdlog::level::info) return;
  if (s.before) s.before();
  s.screen->log(level, std::string(prefix) + shown);
  s.screen->flush();
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
  s.file = std::make_shared<spdlog::logger>("file",
                                            std::make_shared<spdlog::sinks::basic_file_sink_mt>(path, false));
  s.file->set_pattern("%Y-%m-%d %H:%M:%S.%e %l %v");
  s.file->set_level(spdlog::level::debug);
}

void set_hooks(void (*before)(), void (*after)()) {
  const std::lock_guard lock(state().mutex);
  state().before = before;
  state().after = after;
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

}  // namespace octet::log
