// The choice of the checkpoint with the best evaluation.
#include "../src/train/saves/saves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "octet/base/json.h"

namespace octet::train::best_checkpoint_test {
namespace {

std::string state_of(const BestCheckpoint& best) {
  Json state = Json::object();
  best.add_to(state);
  return state.dump();
}

TEST(BestCheckpoint, HasTheLowestFiniteLossOfItsOwnStep) {
  struct Case {
    const char* what;
    bool wanted;
    double best;  ///< figure of the best checkpoint so far; negative: none
    Evaluated latest;
    bool beats;
    bool greater = false;
  };
  const std::vector<Case> cases = {
      {"the first", true, -1, {.step = 8, .figure = 2}, true},
      {"a lower loss", true, 2, {.step = 8, .figure = 1.9}, true},
      {"an equal loss keeps the earlier one", true, 2, {.step = 8, .figure = 2}, false},
      {"a higher loss", true, 2, {.step = 8, .figure = 2.1}, false},
      {"not a number", true, -1, {.step = 8, .figure = NAN}, false},
      {"infinite", true, -1, {.step = 8, .figure = INFINITY}, false},
      {"an evaluation of another step", true, -1, {.step = 7, .figure = 1}, false},
      {"no evaluation", true, -1, {}, false},
      {"not wanted", false, -1, {.step = 8, .figure = 1}, false},
      {"a larger accuracy", true, 0.5, {.step = 8, .figure = 0.6}, true, true},
      {"a smaller accuracy", true, 0.5, {.step = 8, .figure = 0.4}, false, true},
  };
  for (const Case& c : cases) {
    BestCheckpoint best(c.wanted, {.greater = c.greater});
    if (c.best >= 0) best.replace({.step = 4, .figure = c.best, .path = "checkpoint-4"});
    EXPECT_EQ(best.is_beaten_by(c.latest, 8), c.beats) << c.what;
  }
}

TEST(BestCheckpoint, FallsBackToTheSecondBestIfItIsDamaged) {
  BestCheckpoint best(true, {});
  EXPECT_FALSE(best.drop(-1)) << "there is none";
  EXPECT_EQ(state_of(best), "{}");
  best.replace({.step = 4, .figure = 2, .path = "checkpoint-4"});
  best.replace({.step = 8, .figure = 1, .path = "checkpoint-8"});
  EXPECT_EQ(state_of(best), R"({"best":{"step":8,"loss":1.0}})");
  EXPECT_FALSE(best.drop(12)) << "another checkpoint is damaged";
  EXPECT_EQ(best.step(), 8);
  EXPECT_TRUE(best.drop(8));
  EXPECT_EQ(best.best().path, "checkpoint-4");
  EXPECT_TRUE(best.is_beaten_by({.step = 12, .figure = 1.5}, 12));
}

TEST(BestCheckpoint, NamesOtherFiguresThanTheLoss) {
  BestCheckpoint best(true, {.name = "accuracy", .greater = true});
  best.replace({.step = 4, .figure = 0.5, .path = "checkpoint-4"});
  EXPECT_EQ(state_of(best), R"({"best":{"step":4,"figure":"accuracy","greater":true,"value":0.5}})");
}

}  // namespace
}  // namespace octet::train::best_checkpoint_test
