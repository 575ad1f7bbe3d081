// Learning rates of a run that depend on its evaluations.
#pragma once

#include <string>
#include <vector>

#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/optim/schedule.h"

namespace octet::test {

/// Returns the evaluation losses by step. A repeated step fails the test.
inline std::map<std::int64_t, double> evaluations_of(const std::string& output) {
  std::map<std::int64_t, double> losses;
  for (const auto& line : split(slurp(output + "/trainer_log.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json row = parse_json(line, "trainer_log.jsonl");
    if (!row.contains("eval_loss")) continue;
    EXPECT_TRUE(
        losses.emplace(row["current_steps"].get<std::int64_t>(), row["eval_loss"].get<double>()).second)
        << line;
  }
  return losses;
}

/// Returns the rates of all steps in order.
inline std::vector<double> rates_of(const std::string& output) {
  std::vector<double> rates;
  for (const auto& [step, row] : steps_of(output)) rates.push_back(row.at("lr").get<double>());
  return rates;
}

/// Expects the rate of every step to follow from the evaluations before it, which are `each` steps apart.
inline void expect_rates_follow(const std::string& output, const optim::PlateauOptions& options, double peak,
                                std::int64_t each) {
  const auto losses = evaluations_of(output);
  const auto rates = rates_of(output);
  optim::Plateau plateau(peak, options);
  for (std::size_t i = 0; i < rates.size(); ++i) {
    const auto behind = static_cast<std::int64_t>(i);
    if (i > 0 && behind % each == 0) {
      ASSERT_TRUE(losses.contains(behind)) << behind;
      plateau.take(losses.at(behind));
    }
    EXPECT_EQ(rates[i], plateau.learning_rate()) << "step " << i + 1;
  }
}

}  // namespace octet::test
