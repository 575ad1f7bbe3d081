// Many steps with random delays of ranks, in the enqueuing thread or in the compute stream. No order of
// arrival changes a bit. OCTETRUN_SOAK_STEPS sets the number of steps, for longer manual runs.
#include <chrono>
#include <cstdlib>
#include <thread>

#include "store/synthetic.h"

namespace octet::store::soak_test {
namespace {

using namespace synthetic;
using comm::Carrier;

int soak_steps() {
  const char* told = std::getenv("OCTETRUN_SOAK_STEPS");
  return told != nullptr ? std::atoi(told) : 200;
}

Scenario scenario(int stage) {
  Scenario s;
  s.steps = soak_steps();
  s.blocks = 2;
  s.options.stage = stage;
  s.options.overlap = true;
  s.options.deterministic = true;
  s.options.recipe.kind = precision::RecipeKind::delayed;
  s.options.recipe.compute = DType::bf16;
  s.options.recipe.history_length = 4;
  return s;
}

/// Delays one of 32 moments by up to 3 ms.
void sleep_at_random(int rank, std::uint64_t moment) {
  const auto drawn = philox(0x50AB + static_cast<std::uint64_t>(rank), RandomUse::data, moment);
  if (drawn[0] % 32 == 0) std::this_thread::sleep_for(std::chrono::microseconds(drawn[1] % 3000));
}

class Soak : public testing::TestWithParam<Carrier> {};
INSTANTIATE_TEST_SUITE_P(Carriers, Soak, testing::Values(Carrier::peer, Carrier::host),
                         [](const auto& test) { return test.param == Carrier::peer ? "peer" : "host"; });

TEST_P(Soak, RanksThatComeLateAtRandomChangeNoBit) {
  const Outcome punctual = run({.ranks = 2}, scenario(1));
  ASSERT_EQ(punctual.optimizer_steps, soak_steps());
  for (const int stage : {1, 3}) {
    Scenario s = scenario(stage);
    s.late = sleep_at_random;
    const Outcome late = run({.ranks = 2, .compute_worker = true, .carrier = GetParam()}, s);
    EXPECT_EQ(difference(punctual.state, late.state), "") << "stage " << stage;
    EXPECT_EQ(punctual.copies, late.copies) << "stage " << stage;
    EXPECT_EQ(punctual.scales, late.scales) << "stage " << stage;
    for (std::size_t i = 0; i < late.results.size(); ++i) {
      ASSERT_EQ(punctual.results[i].grad_norm, late.results[i].grad_norm)
          << "stage " << stage << ", step " << i;
    }
  }
}

}  // namespace
}  // namespace octet::store::soak_test
