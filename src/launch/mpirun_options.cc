#include "octet/launch/mpirun_options.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <system_error>

#include "octet/base/strings.h"

namespace octet::launch {
namespace {

namespace fs = std::filesystem;

bool is_one_of(const std::string& word, std::initializer_list<const char*> names) {
  return std::ranges::any_of(names, [&](const char* name) { return word == name; });
}

bool may_execute(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

bool names_hosts(const std::string& option) {
  return is_one_of(option, {"-H", "-host", "--host"});
}

bool names_hostfile(const std::string& option) {
  return is_one_of(option, {"-hostfile", "--hostfile", "-machinefile", "--machinefile"});
}

bool counts_ranks(const std::string& option) {
  return is_one_of(option, {"-np", "--np", "-n", "--n", "-c"});
}

std::vector<std::string> files_of_program(const std::string& name, const std::string& path) {
  std::vector<std::string> found;
  if (name.find('/') != std::string::npos) {
    if (may_execute(name)) found.push_back(name);
    return found;
  }
  for (const std::string& folder : split(path.empty() ? "/usr/bin:/bin" : path, ':')) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (may_execute(file)) found.push_back(file);
  }
  return found;
}

}  // namespace octet::launch
