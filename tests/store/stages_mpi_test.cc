// Run under mpirun: the same checks as with threads, over real messages.
#include "store/synthetic.h"

namespace octet::store {
namespace {

using namespace synthetic;

comm::Collectives* the_collectives = nullptr;
Device* the_device = nullptr;

Outcome run_here(const Scenario& scenario) {
  Rank rank(*the_collectives, *the_device, scenario);
  rank.initialise();
  rank.steps(0, scenario.steps);
  return rank.outcome();
}

Scenario scenario(int stage, bool overlap, precision::RecipeKind kind) {
  Scenario s;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.recipe.kind = kind;
  s.options.recipe.compute = DType::bf16;
  s.options.recipe.history_length = 4;
  s.options.adamw.weight_decay = 0.1;
  // The last rank has no tokens in odd steps.
  s.idle = [](int step, int, int rank) { return step % 2 == 1 && rank + 1 == the_collectives->size(); };
  return s;
}

TEST(ZeroMpi, EveryStageGivesTheSameBitsWithOverlapOrWithout) {
  for (const auto kind : {precision::RecipeKind::none, precision::RecipeKind::delayed}) {
    const Outcome reference = run_here(scenario(0, false, kind));
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool overlap : {false, true}) {
        const Outcome o = run_here(scenario(stage, overlap, kind));
        EXPECT_EQ(difference(reference.state, o.state), "") << "stage " << stage << " overlap " << overlap;
        for (std::size_t i = 0; i < reference.results.size(); ++i) {
          EXPECT_EQ(reference.results[i].grad_norm, o.results[i].grad_norm);
          EXPECT_EQ(reference.results[i].loss_sum, o.results[i].loss_sum);
        }
        for (const std::int64_t hash : o.copies) EXPECT_EQ(hash, reference.copies[0]);
        for (const std::int64_t hash : o.scales) EXPECT_EQ(hash, reference.scales[0]);
      }
    }
  }
}

TEST(ZeroMpi, AStateSavedByAllRanksIsLoadedByAllRanks) {
  const Outcome saved = run_here(scenario(1, true, precision::RecipeKind::delayed));
  Rank rank(*the_collectives, *the_device, scenario(0, true, precision::RecipeKind::delayed));
  rank.load(saved.state);
  const Outcome loaded = rank.outcome();
  EXPECT_EQ(difference(saved.state, loaded.state), "");
  EXPECT_EQ(saved.copies, loaded.copies);
}

}  // namespace
}  // namespace octet::store

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto device = octet::make_cpu_device({.threads = 1});
  const auto job = octet::comm::make_job();
  const auto all = job->collectives(octet::comm::Mesh(job->size()).group("data", job->rank()), *device,
                                    octet::comm::Carrier::automatic);
  octet::store::the_collectives = all.get();
  octet::store::the_device = device.get();
  if (job->rank() != 0) {
    auto& listeners = testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
  }
  const int failed = RUN_ALL_TESTS();
  // A failure on any rank fails all ranks.
  const bool any = job->all_max(failed) != 0;
  if (any && job->rank() == 0) std::fputs("a rank failed\n", stderr);
  return any ? 1 : 0;
}
