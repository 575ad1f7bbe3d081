// Threads of this process, as the system sees them.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "octet/base/process.h"

namespace octet::test {

/// The niceness of a thread of this process, by its number.
inline int niceness_of(const std::string& thread) {
  std::ifstream file("/proc/self/task/" + thread + "/stat");
  std::string line;
  std::getline(file, line);
  // The 19th field; the second one, a name in brackets, may hold blanks.
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string word;
  for (int field = 3; field <= 19; ++field) fields >> word;
  return fields ? std::stoi(word) : 0;
}

/// Whether one of the threads there are now gets a core only when others leave one.
inline bool a_thread_runs_behind() {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task", none)) {
    if (niceness_of(entry.path().filename().string()) >= kBehindNiceness) return true;
  }
  return false;
}

/// Whether the calling thread has such a niceness, as in tests under nice(1).
inline bool this_thread_runs_behind() {
  return niceness_of(std::to_string(::gettid())) >= kBehindNiceness;
}

}  // namespace octet::test
