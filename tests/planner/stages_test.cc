// The choice of zero_stage, and the overrides of a model without a configuration.
#include "octet/planner/stages.h"

#include <gtest/gtest.h>

#include "octet/planner/planner.h"

namespace octet::planner::stages_test {
namespace {

/// Rows of stages 0 to 3 that take these seconds and send as many bytes; 0: the stage does not fit.
std::vector<StageRow> rows(const std::vector<double>& seconds) {
  std::vector<StageRow> all;
  for (const double each : seconds) {
    StageRow row{.stage = static_cast<int>(all.size())};
    row.fits = each > 0;
    row.seconds = 0.75 * each;
    row.exposed = 0.25 * each;
    row.sent = static_cast<std::int64_t>(1000 * each);
    all.push_back(row);
  }
  return all;
}

TEST(ChosenStage, IsTheLowestThatIsAtMostTwoPercentSlower) {
  for (const DeviceKind kind : {kGpuKind, kHostKind}) {
    EXPECT_EQ(chosen_stage(rows({1.01, 1.0, 1.0, 1.0}), kind), 0);
    EXPECT_EQ(chosen_stage(rows({1.03, 1.01, 1.0, 1.0}), kind), 1);
    EXPECT_EQ(chosen_stage(rows({1.5, 1.5, 1.5, 1.0}), kind), 3);
  }
}

TEST(ChosenStage, IsAStageThatFits) {
  EXPECT_EQ(chosen_stage(rows({0, 0, 2.0, 3.0}), kGpuKind), 2);
  EXPECT_EQ(chosen_stage(rows({0, 0, 0, 0}), kGpuKind), std::nullopt);
  EXPECT_EQ(chosen_stage({}, kGpuKind), std::nullopt);
}

TEST(ShapeWords, AddBf16UnlessAPrecisionIsGiven) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(with_bf16({}), Words{"bf16=true"});
  EXPECT_EQ(with_bf16({"fp8=true"}), (Words{"fp8=true", "bf16=true"}));
  for (const std::string word : {"bf16=false", "--bf16=false", "--bf16", "pure_bf16=true"})
    EXPECT_EQ(with_bf16({word}), Words{word});
}

}  // namespace
}  // namespace octet::planner::stages_test
