#include "octet/launch/processes.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/strings.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;

// Returns the fields of /proc/PID/stat after the name, which may have any character: state, parent, ... Empty
// for a process that is gone.
std::vector<std::string> stat_of(pid_t process) {
  const std::string stat = file_of(process, "stat");
  const std::size_t name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return {};
  return split(std::string_view(stat).substr(name_end + 2), ' ');
}

constexpr std::size_t kState = 0, kParent = 1, kStarted = 19;

bool has_ended(const std::vector<std::string>& stat) {
  return stat.size() <= kStarted || stat[kState] == "Z" || stat[kState] == "X";
}

}  // namespace

std::string file_of(pid_t process, const std::string& name) {
  try {
    return read_file("/proc/" + std::to_string(process) + "/" + name);
  } catch (const Error&) {
    return "";
  }
}

std::vector<pid_t> all_processes() {
  std::vector<pid_t> found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/proc", none)) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos)
      found.push_back(static_cast<pid_t>(std::atol(name.c_str())));
  }
  return found;
}

ProcessTree::ProcessTree() {
  for (const pid_t process : all_processes()) {
    const std::vector<std::string> stat = stat_of(process);
    if (!has_ended(stat))
      by_parent_.emplace_back(static_cast<pid_t>(std::atol(stat[kParent].c_str())), process);
  }
  std::ranges::sort(by_parent_);
}

std::vector<pid_t> ProcessTree::children(pid_t parent) const {
  std::vector<pid_t> found;
  const auto [first, last] =
      std::ranges::equal_range(by_parent_, parent, {}, &std::pair<pid_t, pid_t>::first);
  for (auto child = first; child != last; ++child) found.push_back(child->second);
  return found;
}

std::vector<pid_t> ProcessTree::below(pid_t root) const {
  std::vector<pid_t> found = children(root);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const std::vector<pid_t> next = children(found[i]);
    found.insert(found.end(), next.begin(), next.end());
  }
  return found;
}

Process::Process(pid_t pid) : pid_(pid) {
  const std::vector<std::string> stat = stat_of(pid);
  if (stat.size() > kStarted) started_ = stat[kStarted];
}

bool Process::gone() const {
  const std::vector<std::string> stat = stat_of(pid_);
  return has_ended(stat) || stat[kStarted] != started_;
}

bool has_variable(pid_t process, const std::vector<std::string>& beginnings) {
  const std::vector<std::string> variables = split(file_of(process, "environ"), '\0');
  return std::ranges::any_of(variables, [&](const std::string& variable) {
    return std::ranges::any_of(beginnings,
                               [&](const std::string& text) { return variable.starts_with(text); });
  });
}

bool is_rank(pid_t process) {
  return has_variable(process, {"OMPI_COMM_WORLD_RANK=", "PMI_RANK="});
}

std::uint64_t signals_of(pid_t process, std::string_view line) {
  const std::string status = file_of(process, "status");
  const std::size_t at = status.find("\n" + std::string(line) + ":");
  if (at == std::string::npos) return 0;
  return std::strtoull(status.c_str() + at + line.size() + 2, nullptr, 16);
}

bool catches(pid_t process, int signal) {
  return (signals_of(process, "SigCgt") >> (signal - 1) & 1) != 0;
}

std::string program_of(pid_t process) {
  return std::string(trim(file_of(process, "comm")));
}

}  // namespace octet::launch
