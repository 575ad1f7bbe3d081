// The part of a step's messages that computation cannot hide.
#include "octet/plan/time.h"

#include <gtest/gtest.h>

#include "octet/model/shapes.h"

namespace octet::plan::exposed_test {
namespace {

constexpr Link kLink{"a link", 1e9, false}, kShared{"a network", 1e9, true};
// A forward pass of 2 s and a backward pass of 5.
const Time kTime{.rows = {}, .seconds = 0, .forward_seconds = 2, .backward_seconds = 5};

TEST(Exposed, IsWhatOutlastsThePassesBesideIt) {
  // One backward pass hides sums of 4 s; of 9 s, 4 s stay exposed.
  EXPECT_EQ(exposed_seconds({.sums = 4e9}, kTime, 3, kLink, 8), 0);
  EXPECT_EQ(exposed_seconds({.sums = 9e9}, kTime, 3, kLink, 8), 4);
  // Three passes hide them, 3 s each.
  EXPECT_EQ(exposed_seconds({.sums = 9e9, .sum_passes = 3}, kTime, 3, kLink, 8), 0);
  EXPECT_EQ(exposed_seconds({.sums = 18e9, .sum_passes = 3}, kTime, 3, kLink, 8), 3);
  // Parameters after an update have the first forward pass, at stage 3 each.
  EXPECT_EQ(exposed_seconds({.forward = 6e9}, kTime, 3, kLink, 8), 4);
  EXPECT_EQ(exposed_seconds({.forward = 6e9, .forward_passes = 3}, kTime, 3, kLink, 8), 0);
  EXPECT_EQ(exposed_seconds({.alone = 7e9}, kTime, 3, kLink, 8), 7) << "nothing is computed beside it";
  EXPECT_EQ(exposed_seconds({}, kTime, 1, kLink, 8), 0);
}

TEST(Exposed, SumsAndParametersShareTheLinkInABackwardPass) {
  // Parameters take 4 s in each of two passes, sums take 3 s in one of them.
  EXPECT_EQ(exposed_seconds({.sums = 3e9, .backward = 8e9}, kTime, 2, kLink, 8), 2);
  EXPECT_EQ(exposed_seconds({.sums = 6e9, .backward = 8e9, .sum_passes = 2}, kTime, 2, kLink, 8), 4);
  // Parameters alone outlast it in all of three.
  EXPECT_EQ(exposed_seconds({.backward = 18e9}, kTime, 3, kLink, 8), 3);
}

TEST(Exposed, RanksOfAHostShareItsNetwork) {
  EXPECT_EQ(exposed_seconds({.alone = 1e9}, kTime, 1, kShared, 8), 8);
  EXPECT_EQ(exposed_seconds({.alone = 1e9}, kTime, 1, kLink, 8), 1);
}

// A step is the passes and the update. Recomputation belongs to the backward pass.
TEST(Exposed, PassesAreTheTimeOfAStepWithoutItsUpdate) {
  Work work{.architecture = model::find_shape("llama-3.1-8b"),
            .recipe = {.kind = precision::RecipeKind::delayed, .compute = DType::bf16},
            .tokens = 8192,
            .length = 4096,
            .micro_batches = 3,
            .optimizer_bytes = 42e9};
  const Time none = time_of(work);
  EXPECT_NEAR(3 * (none.forward_seconds + none.backward_seconds) + 42e9 / 4.2e12, none.seconds, 1e-9);
  EXPECT_GT(none.backward_seconds, 1.8 * none.forward_seconds);
  EXPECT_LT(none.backward_seconds, 2.3 * none.forward_seconds);
  work.recompute = model::Recompute::full;
  const Time full = time_of(work);
  EXPECT_EQ(full.forward_seconds, none.forward_seconds);
  EXPECT_NEAR(full.backward_seconds - none.backward_seconds, full.recompute_seconds / 3, 1e-9);
}

}  // namespace
}  // namespace octet::plan::exposed_test
