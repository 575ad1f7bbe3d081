// The state of reduce_lr_on_plateau in checkpoints.
#include "../src/train/evaluations.h"

#include <gtest/gtest.h>

#include <limits>

#include "octet/base/error.h"
#include "octet/base/json.h"

namespace octet::train::plateau_state_test {
namespace {

using State = optim::Plateau::State;
constexpr double kInfinity = std::numeric_limits<double>::infinity();

TEST(PlateauState, IsReadAsItWasWritten) {
  for (const double best : {1.25, kInfinity, -kInfinity}) {
    const State state{
        .mode = "max", .peak = 1e-3, .learning_rate = 5e-4, .best = best, .bad = 2, .cooldown = 3};
    // Through the text of a file, because JSON has no infinities.
    const State read = read_plateau(parse_json(plateau_json(state).dump(), "file"), "file");
    EXPECT_EQ(read.mode, state.mode);
    EXPECT_EQ(read.peak, state.peak);
    EXPECT_EQ(read.learning_rate, state.learning_rate);
    EXPECT_EQ(read.best, state.best);
    EXPECT_EQ(read.bad, state.bad);
    EXPECT_EQ(read.cooldown, state.cooldown);
  }
}

TEST(PlateauState, WithoutABestValueAnyEvaluationIsBetter) {
  EXPECT_EQ(read_plateau(Json{{"mode", "min"}}, "file").best, kInfinity);
  EXPECT_EQ(read_plateau(Json{{"mode", "max"}}, "file").best, -kInfinity);
}

TEST(PlateauState, RefusesCountsBelowZero) {
  EXPECT_THROW(read_plateau(Json{{"bad", -1}}, "file"), Error);
  EXPECT_THROW(read_plateau(Json{{"cooldown", -1}}, "file"), Error);
}

}  // namespace
}  // namespace octet::train::plateau_state_test
