#include "check/call.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/terminal.h"
#include "octet/launch/mpirun_options.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kUsage =
    R"(
Checks that the hosts of a hostfile can train together. Each host must answer ssh without a password, have the same
program and the same MPI under the same paths, see the same folder, and have enough space, limits and a correct clock.
Then every host connects to ports of each other host, in the ranges that Open MPI uses. At last each two ranks exchange
messages (`trainer verify`), which measures their rate.

  launch/check-hosts [-p PROGRAM] [-d FOLDER] [-c CONFIG] [-t SECONDS] [-n] HOSTFILE [MPIRUN'S OPTIONS...]

  -p PROGRAM  the trainer, by the path of the job         (build/bin/trainer next to launch/, or the installed one)
  -d FOLDER   that will hold the output folder            (the current folder)
  -c CONFIG   a configuration (YAML): each host must have its model, adapters and data
  -t SECONDS  that the messages between the ranks may take  (300)
  -n          only the hosts, no message between ranks

Further options go to launch/mpirun (interfaces, for instance). Hosts are reached as mpirun reaches them: by ssh, or by
what OMPI_MCA_plm_rsh_agent names (PRTE_MCA_plm_ssh_agent of Open MPI 5). Exit code: 0, or 1 when something is wrong, or 64
for a wrong call.
)";

[[noreturn]] void refuse_check(const char* what, const char* expected, const std::string& where,
                               const char* fix) {
  throw Error({.what = what,
               .expected = expected,
               .where = printable_line(where),
               .fix = fix,
               .code = ExitCode::usage});
}

bool is_executable(const std::string& path) {
  return !is_folder(path) && ::access(path.c_str(), X_OK) == 0;
}

// Returns the folder of the script. The script may be a link.
std::string folder_of(const std::string& called, const Environment& environment) {
  std::error_code unknown;
  const fs::path file = fs::canonical(called, unknown);
  return (unknown ? fs::path(absolute_path(called, environment)) : file).parent_path().string();
}

std::string program_of_call(const CheckCall& call, const std::string& here, const Environment& environment) {
  std::string program = call.program;
  if (program.empty()) {
    const std::string& build = value_in(environment, "OCTETRUN_BUILD");
    program = (build.empty() ? here + "/../build" : build) + "/bin/trainer";
    if (!is_executable(program)) program = here + "/trainer";
    if (!is_executable(program)) {
      const auto files = files_of_program("trainer", value_in(environment, "PATH"));
      program = files.empty() ? "" : files.front();
    }
  }
  if (!is_executable(program))
    refuse_check("the program does not exist", "the trainer's path, after -p",
                 program.empty() ? "build/bin/trainer" : program,
                 "build it (launch/build), or name another: -p PROGRAM");
  return absolute_path(program, environment);
}

// Larger numbers are reduced to this limit, which no run reaches.
constexpr std::int64_t kMostSeconds = 1'000'000'000;

std::chrono::seconds seconds_of(const std::string& text) {
  std::int64_t seconds = 0;
  for (const char c : text) {
    if (c < '0' || c > '9') {
      seconds = 0;
      break;
    }
    seconds = std::min(kMostSeconds, seconds * 10 + (c - '0'));
  }
  if (seconds == 0)
    refuse_check("-t is not a number of seconds", "a whole number of at least 1", "-t " + text,
                 "give such a number, or leave -t out");
  return std::chrono::seconds(seconds);
}

}  // namespace

std::optional<CheckCall> read_check_call(const Words& words, std::string& complaint) {
  CheckCall call;
  std::size_t next = 0;
  while (next < words.size() && words[next].size() > 1 && words[next].front() == '-') {
    const std::string& word = words[next++];
    if (word == "--") break;
    for (std::size_t i = 1; i < word.size(); ++i) {
      const char option = word[i];
      if (option == 'n') {
        call.sends_messages = false;
        continue;
      }
      std::string* value = option == 'p'   ? &call.program
                           : option == 'd' ? &call.folder
                           : option == 'c' ? &call.config
                           : option == 't' ? &call.seconds
                                           : nullptr;
      const bool has_value = i + 1 < word.size() || next < words.size();
      if (value == nullptr || !has_value) {
        if (option != 'h')
          complaint = std::string(value == nullptr ? "illegal option" : "option requires an argument") +
                      " -- " + option;
        return std::nullopt;
      }
      *value = i + 1 < word.size() ? word.substr(i + 1) : words[next++];
      break;
    }
  }
  if (next == words.size()) return std::nullopt;
  call.hostfile = words[next];
  call.mpirun_options.assign(words.begin() + static_cast<std::ptrdiff_t>(next) + 1, words.end());
  return call;
}

std::string usage_of_check() {
  return std::string(kUsage.substr(1));
}

std::string absolute_path(const std::string& path, const Environment& environment) {
  std::error_code none;
  const std::string& shell = value_in(environment, "PWD");
  const bool is_valid = shell.starts_with('/') && fs::equivalent(shell, ".", none);
  const fs::path start = is_valid ? fs::path(shell) : fs::current_path(none);
  const std::string text = (start / path).lexically_normal().string();
  return text.size() > 1 && text.ends_with('/') ? text.substr(0, text.size() - 1) : text;
}

CheckOrder order_of(const CheckCall& call, const std::string& called, const Environment& environment) {
  const std::string here = folder_of(called, environment);
  const bool is_installed = is_executable(here + "/octet-mpirun");
  CheckOrder order{.program = program_of_call(call, here, environment),
                   .folder = absolute_path(call.folder.empty() ? "." : call.folder, environment),
                   .config = call.config,
                   .seconds = seconds_of(call.seconds),
                   .sends_messages = call.sends_messages,
                   .hostfile = call.hostfile,
                   .mpirun_options = call.mpirun_options,
                   .launcher = here + (is_installed ? "/octet-mpirun" : "/mpirun")};
  std::error_code none;
  if (!call.config.empty() && !fs::is_regular_file(call.config, none))
    refuse_check("the configuration cannot be read", "a YAML file", "-c " + call.config, "check the path");
  if (!is_folder(order.folder))
    refuse_check("the folder does not exist", "a folder that all hosts share", "-d " + call.folder,
                 "make it (mkdir), or name another: -d FOLDER");
  return order;
}

}  // namespace octet::launch
