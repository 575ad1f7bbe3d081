#include "octet/supervise/job_command.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <exception>
#include <unordered_map>
#include <utility>

#include "octet/base/environment.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/config/derive.h"
#include "octet/launch/hosts.h"
#include "octet/launch/mpirun_options.h"

namespace octet::supervise {
namespace {

bool is_configuration(const std::string& word) {
  return word.ends_with(".yaml") || word.ends_with(".yml") || word.ends_with(".json");
}

bool is_override(const std::string& word) {
  const std::size_t equals = word.find('=');
  return equals != std::string::npos && equals > 0 && !word.starts_with('-');
}

// Returns the index of the program among the words; their number if there is none.
std::size_t find_program(const Strings& words, const std::function<bool(const std::string&)>& executable,
                         const std::function<bool(const std::string&)>& follows) {
  for (std::size_t i = 0; i + 1 < words.size(); ++i) {
    if (follows(words[i + 1]) && !words[i].starts_with('-') && executable(words[i])) return i;
  }
  return words.size();
}

using launch::counts_ranks;
using launch::names_hosts;

// -f is an option of MPICH.
bool names_hostfile(const std::string& word) {
  return launch::names_hostfile(word) || word == "-f";
}

std::optional<int> number(std::string_view text) {
  int value = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (code != std::errc() || end != text.data() + text.size() || value < 1) return std::nullopt;
  return value;
}

int sum_of_slots(int a, int b) {
  return std::min(a + b, launch::kMostSlots);
}

/// Collects hosts in the order in which they are first named.
class Hosts {
 public:
  void add(const launch::HostSlots& host) {
    const auto [known, is_new] = places_.try_emplace(host.name, all_.size());
    if (is_new) all_.push_back({.name = host.name, .slots = 0});
    int& sum = all_[known->second].slots;
    sum = sum_of_slots(sum, host.slots);
  }
  std::vector<Host> take() { return std::move(all_); }

 private:
  std::vector<Host> all_;
  std::unordered_map<std::string, std::size_t> places_;
};

[[noreturn]] void refuse(const std::string& what, const std::string& found) {
  throw Error({.what = what,
               .expected = "launch/supervise [launch/mpirun's arguments] trainer config.yaml [key=value ...]",
               .found = found,
               .where = "command line",
               .fix = "launch/supervise --help says more",
               .code = ExitCode::usage});
}

}  // namespace

Strings Command::words(const Strings& overrides) const {
  Strings all = launcher;
  all.insert(all.end(), program.begin(), program.end());
  all.insert(all.end(), arguments.begin(), arguments.end());
  all.insert(all.end(), overrides.begin(), overrides.end());
  return all;
}

bool is_program(const std::string& word) {
  const char* path = environment_variable("PATH");
  return !launch::files_of_program(word, path == nullptr ? "" : path).empty();
}

Command parse_command(const std::string& launcher, const Strings& words,
                      const std::function<bool(const std::string&)>& executable) {
  std::string said;
  for (const std::string& word : words) said += (said.empty() ? "" : " ") + word;
  if (std::ranges::find(words, ":") != words.end())
    refuse("a job of several programs cannot be supervised", said);
  std::size_t at = find_program(
      words, executable, [](const std::string& next) { return next == "train" || is_configuration(next); });
  if (at == words.size()) at = find_program(words, executable, is_override);
  if (at == words.size()) refuse("there is no training to supervise", said.empty() ? "nothing" : said);
  const auto middle = words.begin() + static_cast<std::ptrdiff_t>(at);
  const auto behind = middle + (*(middle + 1) == "train" ? 2 : 1);
  Command command{.launcher = {launcher}, .program = {middle, behind}, .arguments = {behind, words.end()}};
  command.launcher.insert(command.launcher.end(), words.begin(), middle);
  return command;
}

std::optional<int> ranks_of(const Command& command) {
  for (std::size_t i = 0; i + 1 < command.launcher.size(); ++i) {
    if (counts_ranks(command.launcher[i])) return number(command.launcher[i + 1]);
  }
  return std::nullopt;
}

void set_ranks(Command& command, int ranks) {
  for (std::size_t i = 0; i + 1 < command.launcher.size(); ++i) {
    if (!counts_ranks(command.launcher[i])) continue;
    command.launcher[i + 1] = std::to_string(ranks);
    return;
  }
}

std::vector<Host> hosts_of(const Command& command) {
  Hosts hosts;
  for (std::size_t i = 0; i + 1 < command.launcher.size(); ++i) {
    const std::string& value = command.launcher[i + 1];
    std::vector<launch::HostSlots> named;
    if (names_hosts(command.launcher[i])) {
      named = launch::parse_host_list(value, command.launcher[i] + " " + value);
    } else if (names_hostfile(command.launcher[i])) {
      named = launch::read_hostfile(value);
    }
    // A host that is named again gets additional slots.
    for (const launch::HostSlots& host : named) hosts.add(host);
  }
  return hosts.take();
}

void require_hostfiles(const Command& command) {
  for (std::size_t i = 0; i + 1 < command.launcher.size(); ++i) {
    const std::string& word = command.launcher[i];
    // -f may be an option of a wrapper between the launcher's arguments and the program.
    if (names_hostfile(word) && word != "-f") launch::read_hostfile(command.launcher[i + 1]);
  }
}

std::optional<int> leave_out(Command& command, const std::string& host) {
  std::vector<Host> hosts = hosts_of(command);
  // mpirun may name a host with or without its domain.
  const auto same = [&](const Host& named) {
    return named.name == host || named.name.starts_with(host + ".") || host.starts_with(named.name + ".");
  };
  if (std::erase_if(hosts, same) == 0 || hosts.empty()) return std::nullopt;
  std::string list;
  int slots = 0;
  for (const Host& left : hosts) {
    list += (list.empty() ? "" : ",") + left.name + ":" + std::to_string(left.slots);
    slots = sum_of_slots(slots, left.slots);
  }
  Strings kept;
  for (std::size_t i = 0; i < command.launcher.size(); ++i) {
    if (names_hosts(command.launcher[i]) || names_hostfile(command.launcher[i])) {
      ++i;
      continue;
    }
    kept.push_back(command.launcher[i]);
  }
  // Inserted directly after the launcher, because a wrapper may be between its arguments and the program.
  kept.insert(kept.begin() + 1, {"--host", list});
  command.launcher = kept;
  return slots;
}

namespace {

bool holds(const std::string& path) {
  try {
    checkpoint::Checkpoint(path).verify();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

Strings resume_overrides(const config::SaveKeys& config, const report::Progress& saved) {
  if (saved.saved_step < 0) return {};
  const std::string wish = config.resume_from_checkpoint.value_or("");
  const bool newest = wish == "true" || wish == "auto" || (wish.empty() && !config.overwrite_output_dir);
  // A run with overwrite_output_dir resumes from its own checkpoints until its last step is saved. After that
  // it would start anew.
  const bool finds_itself =
      wish.empty() && config.overwrite_output_dir && saved.saved_step < saved.total_steps;
  if (newest || finds_itself || !holds(saved.saved)) return {};
  return {"resume_from_checkpoint=" + saved.saved};
}

bool runs_on(const config::BatchKeys& config, int ranks) {
  try {
    if (config.auto_find_batch_size) {
      config::possible_micro_batches(config, ranks);
    } else {
      config::resolve_batch(config, ranks);
    }
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace octet::supervise
