// What tests of saves share.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/task.h"

namespace octet::test {

/// The steps of the checkpoints of a run's folder, ascending.
inline std::vector<std::int64_t> checkpoints_of(const std::string& output) {
  std::vector<std::int64_t> steps;
  for (const auto& entry : std::filesystem::directory_iterator(output)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("checkpoint-")) steps.push_back(std::stoll(name.substr(11)));
  }
  std::ranges::sort(steps);
  return steps;
}

inline bool says(const Outcome& run, const std::string& words) {
  return run.err.find(words) != std::string::npos;
}

}  // namespace octet::test
