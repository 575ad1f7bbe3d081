// Shared parts of the tests of saves.
#pragma once

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/task.h"

namespace octet::test {

/// Returns the steps of the checkpoints in a run's folder, ascending.
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

/// Expects the step time that gives an interval ("... a step 0.01 s; ...") to match the log. It is first
/// printed after the tenth step, and is the median of ten.
inline void expect_measured_step(const Outcome& run, const std::string& what, const std::string& output) {
  const std::size_t line = run.err.find(what + " after ");
  ASSERT_NE(line, std::string::npos) << run.err;
  const std::string words = "s, a step ";
  const double told = std::stod(run.err.substr(run.err.find(words, line) + words.size()));
  std::vector<double> seconds;
  for (const auto& [step, row] : steps_of(output)) {
    if (step <= 10) seconds.push_back(row.at("seconds_per_step").get<double>());
  }
  std::ranges::sort(seconds);
  EXPECT_GT(told, 0.7 * seconds.at(3)) << run.err;
  EXPECT_LT(told, 1.5 * seconds.at(6)) << run.err;
}

}  // namespace octet::test
