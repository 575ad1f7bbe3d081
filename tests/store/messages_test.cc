// The planned message bytes equal the bytes that a run sends.
#include "octet/store/step_messages.h"

#include "store/synthetic.h"

namespace octet::store::messages_test {
namespace {

using namespace synthetic;

/// Every byte overlaps with a computation, or is counted as `alone`.
void expect_all_beside(const StepMessages& sent) {
  comm::Sent all = sent.beside.sums;
  all += sent.beside.backward;
  all += sent.beside.forward;
  all += sent.beside.alone;
  EXPECT_EQ(all.bytes, sent.bytes());
  EXPECT_EQ(all.between_nodes, sent.between_nodes());
}

void expect_counted(int ranks, const Scenario& s, const std::vector<int>& node_of = {}) {
  comm::run_ranks_as_threads(
      {.ranks = ranks, .node_of = node_of}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
        Rank rank(collectives, device, s);
        rank.initialise();
        for (int step = 0; step < 2; ++step) {
          rank.step(step);
          rank.store().synchronize(rank.compute());
          collectives.channel().barrier();
          const std::vector<comm::Traffic> traffic = collectives.take_traffic();
          if (step == 0) continue;  // includes the first gathers of all groups
          StepMessages sent;
          for (const comm::Traffic& t : traffic) {
            const comm::Sent counted{t.bytes_sent, t.bytes_between_nodes};
            if (t.kind == "reduce_scatter") sent.reduced += counted;
            if (t.kind.starts_with("all_gather")) sent.gathered += counted;
          }
          const StepMessages planned =
              step_messages(rank.store().layout(), s.options, collectives.place(), s.micro_batches);
          expect_all_beside(planned);
          EXPECT_EQ(planned.reduced.bytes, sent.reduced.bytes);
          EXPECT_EQ(planned.reduced.between_nodes, sent.reduced.between_nodes);
          EXPECT_EQ(planned.gathered.bytes, sent.gathered.bytes);
          EXPECT_EQ(planned.gathered.between_nodes, sent.gathered.between_nodes);
          EXPECT_GT(planned.reduced.bytes, 0);
          EXPECT_GT(planned.gathered.bytes, 0);
          EXPECT_EQ(planned.between_nodes() > 0, collectives.place().nodes > 1);
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

TEST(Messages, OfWhatIsFrozenAreOnlyThoseThatBringItBackToItsUse) {
  const auto part_of = [](const std::string& which) {
    return [which](const model::SegmentSpec& s) { return s.name.find(which) != std::string::npos; };
  };
  for (const char* frozen : {"layers", "matrices", "layers.0", "embedding"}) {
    for (const int stage : {0, 1, 3}) {
      for (const int micro_batches : {1, 2}) {
        SCOPED_TRACE(std::string(frozen) + ", stage " + std::to_string(stage));
        Scenario s;
        s.micro_batches = micro_batches;
        s.options.stage = stage;
        s.options.recipe.compute = DType::bf16;
        s.options.recipe.kind = precision::RecipeKind::delayed;
        s.frozen = part_of(frozen);
        expect_counted(2, s);
      }
    }
  }
}

// Backward ends at the lowest group with trained segments. Groups below it are not gathered for backward.
TEST(Messages, BelowTheLowestTrainedGroupNothingIsGatheredForBackward) {
  for (int lowest = 1; lowest <= 6; ++lowest) {
    for (const int stage : {0, 2, 3}) {
      for (const int micro_batches : {1, 3}) {
        for (const bool overlap : {true, false}) {
          SCOPED_TRACE("from group " + std::to_string(lowest) + ", stage " + std::to_string(stage) + ", " +
                       std::to_string(micro_batches) + " micro-batches");
          Scenario s;
          s.micro_batches = micro_batches;
          s.options.stage = stage;
          s.options.overlap = overlap;
          s.frozen = [lowest](const model::SegmentSpec& segment) {
            if (segment.name.starts_with("embedding")) return true;
            return segment.name.starts_with("layers.") && segment.name[7] - '0' + 1 < lowest;
          };
          expect_counted(2, s);
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

TEST(Messages, BetweenNodesAreCountedApart) {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 1}, {0, 1}}) {
    for (const Hierarchical hierarchical : {Hierarchical::off, Hierarchical::automatic, Hierarchical::on}) {
      for (const int stage : {0, 3}) {
        for (const comm::Wire wire : {comm::Wire::f32, comm::Wire::int8}) {
          SCOPED_TRACE(std::to_string(nodes.size()) + " ranks, by node " +
                       std::to_string(static_cast<int>(hierarchical)) + ", stage " + std::to_string(stage) +
                       ", wire " + std::to_string(static_cast<int>(wire)));
          Scenario s;
          s.options.stage = stage;
          s.options.hierarchical = hierarchical;
          s.options.wire = wire;
          s.options.recipe.compute = DType::bf16;
          expect_counted(static_cast<int>(nodes.size()), s, nodes);
        }
      }
    }
  }
}

/// Returns the messages of one of two ranks in fp32, without deterministic sums per micro-batch.
StepMessages of_stage(int stage, int micro_batches, bool overlap = true) {
  Options options;
  options.stage = stage;
  options.deterministic = false;
  options.overlap = overlap;
  comm::Place place;
  place.size = place.local_size = 2;
  place.node_of = {0, 0};
  return step_messages(layout(5), options, place, micro_batches);
}

// Backward ends at the embedding, and forward begins with it, so neither its gradients nor its values overlap
// with a pass. Each direction sends four bytes per element, for the half that the other rank owns.
TEST(Messages, OfTheFirstGroupTravelAlone) {
  std::int64_t elements = 0;
  for (const model::SegmentSpec& s : layout(5).groups[0].segments) elements += model::padded_count(s, 2);
  for (const int stage : {0, 1, 2, 3}) {
    for (const int micro_batches : {1, 3}) {
      SCOPED_TRACE(std::to_string(stage) + ", " + std::to_string(micro_batches));
      const StepMessages sent = of_stage(stage, micro_batches);
      expect_all_beside(sent);
      EXPECT_EQ(sent.beside.alone.bytes, 2 * 4 * elements / 2);
    }
  }
}

TEST(Messages, TravelBesideThePassesThatTheyBelongTo) {
  const StepMessages sums = of_stage(0, 3);
  EXPECT_EQ(sums.beside.sum_passes, 1) << "of the last micro-batch";
  EXPECT_EQ(sums.beside.forward.bytes + sums.beside.backward.bytes, 0);
  const StepMessages states = of_stage(1, 3);
  EXPECT_EQ(states.beside.sum_passes, 1);
  EXPECT_EQ(states.beside.forward_passes, 1);
  EXPECT_EQ(states.beside.backward.bytes, 0);
  EXPECT_EQ(states.beside.forward.bytes, of_stage(1, 1).beside.forward.bytes) << "after the update alone";
  const StepMessages gradients = of_stage(2, 3);
  EXPECT_EQ(gradients.beside.sum_passes, 3) << "each micro-batch is reduced";
  EXPECT_EQ(gradients.beside.sums.bytes - states.beside.sums.bytes, 2 * states.reduced.bytes)
      << "beside the sums of a micro-batch that is not the last the next one is computed";
  const StepMessages all = of_stage(3, 3), once = of_stage(3, 1);
  EXPECT_EQ(all.beside.forward_passes, 3);
  EXPECT_GT(once.beside.backward.bytes, 0);
  EXPECT_EQ(all.beside.backward.bytes, 3 * once.beside.backward.bytes);
  EXPECT_EQ(all.gathered.bytes - once.gathered.bytes,
            all.beside.forward.bytes - once.beside.forward.bytes + 2 * once.beside.backward.bytes);
}

TEST(Messages, WithoutOverlapAllTravelAlone) {
  for (const int stage : {0, 1, 2, 3}) {
    const StepMessages sent = of_stage(stage, 2, false);
    EXPECT_EQ(sent.beside.alone.bytes, sent.bytes()) << stage;
    EXPECT_EQ(sent.bytes(), of_stage(stage, 2).bytes()) << stage;
  }
}

TEST(Messages, ALoneRankSendsNone) {
  EXPECT_EQ(step_messages(layout(2), {}, {}, 2).bytes(), 0);
}

}  // namespace
}  // namespace octet::store::messages_test
