// What a plan counts of messages is what a run sends.
#include "octet/zero/messages.h"

#include "zero/synthetic.h"

namespace octet::zero {
namespace {

using namespace synthetic;

void expect_counted(int ranks, const Scenario& s) {
  comm::run_ranks_as_threads(
      {.ranks = ranks}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
        Rank rank(collectives, device, s);
        rank.initialise();
        for (int step = 0; step < 2; ++step) {
          rank.step(step);
          rank.store().synchronize(rank.compute());
          collectives.channel().barrier();
          const std::vector<comm::Traffic> traffic = collectives.take_traffic();
          if (step == 0) continue;  // with the first copies of all
          StepMessages sent;
          for (const comm::Traffic& t : traffic) {
            if (t.kind == "reduce_scatter") sent.reduced += t.bytes_sent;
            if (t.kind.starts_with("all_gather")) sent.gathered += t.bytes_sent;
          }
          const StepMessages planned =
              step_messages(rank.store().layout(), s.options, collectives.place(), s.micro_batches);
          EXPECT_EQ(planned.reduced, sent.reduced);
          EXPECT_EQ(planned.gathered, sent.gathered);
          EXPECT_GT(planned.reduced, 0);
          EXPECT_GT(planned.gathered, 0);
        }
      });
}

TEST(Messages, OfAStepAreThoseThatARunSends) {
  for (const int ranks : {2, 3}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const int micro_batches : {1, 3}) {
        for (const bool deterministic : {true, false}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, stage " + std::to_string(stage) + ", " +
                       std::to_string(micro_batches) + " micro-batches");
          Scenario s;
          s.micro_batches = micro_batches;
          s.options.stage = stage;
          s.options.deterministic = deterministic;
          s.options.overlap = deterministic;
          expect_counted(ranks, s);
        }
      }
    }
  }
}

TEST(Messages, FollowTheFormatsInWhichThingsTravelAndLie) {
  for (const int stage : {0, 1, 2, 3}) {
    SCOPED_TRACE(stage);
    Scenario s;
    s.options.stage = stage;
    s.options.recipe.compute = DType::bf16;
    s.options.recipe.kind = precision::RecipeKind::current;
    expect_counted(2, s);
    s.options.wire = comm::Wire::int8;
    if (stage > 0) s.options.gather_wire = comm::Wire::fp8;
    expect_counted(2, s);
    s.options.wire = comm::Wire::f32;
    s.options.storage = {DType::bf16, DType::bf16, DType::bf16};
    s.options.deterministic = false;
    expect_counted(2, s);
    s.options.storage = {};
    s.options.gather_wire = comm::Wire::f32;
    s.options.strict = true;
    expect_counted(3, s);
  }
}

TEST(Messages, OfModelsWithFewBlocksAreCountedToo) {
  for (const int blocks : {1, 2, 3}) {
    SCOPED_TRACE(blocks);
    Scenario s;
    s.blocks = blocks;
    s.options.stage = 3;
    expect_counted(2, s);
  }
}

TEST(Messages, ALoneRankSendsNone) {
  EXPECT_EQ(step_messages(layout(2), {}, {}, 2).bytes(), 0);
}

}  // namespace
}  // namespace octet::zero
