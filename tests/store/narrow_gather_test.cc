// Parameters that are gathered in a narrower format than the compute format.
#include "store/synthetic.h"

namespace octet::store::narrow_gather_test {
namespace {

using namespace synthetic;

struct Case {
  const char* name;
  DType compute;
  precision::RecipeKind kind;
  comm::Wire wire;
};
const Case kCases[] = {
    {"fp32 as bf16", DType::f32, precision::RecipeKind::none, comm::Wire::bf16},
    {"fp32 as fp8", DType::f32, precision::RecipeKind::none, comm::Wire::fp8},
    {"bf16 as fp8", DType::bf16, precision::RecipeKind::none, comm::Wire::fp8},
    {"bf16 as fp8 beside FP8 weights", DType::bf16, precision::RecipeKind::delayed, comm::Wire::fp8},
};

Scenario scenario(const Case& c, int stage, bool overlap) {
  Scenario s;
  s.options.stage = stage;
  s.options.overlap = overlap;
  s.options.gather_wire = c.wire;
  s.options.recipe.kind = c.kind;
  s.options.recipe.compute = c.compute;
  s.options.recipe.history_length = 4;
  return s;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(difference(a.state, b.state), "") << what;
  EXPECT_EQ(difference(a.gradients, b.gradients), "") << what;
  for (const std::int64_t hash : b.copies) EXPECT_EQ(hash, a.copies[0]) << what;
}

TEST(NarrowGather, EveryStageThatGathersGivesTheSameBitsOnAllRanks) {
  for (const Case& c : kCases) {
    for (const int ranks : {2, 3, 4}) {
      const Outcome reference = run({.ranks = ranks}, scenario(c, 1, false));
      for (const int stage : {1, 2, 3}) {
        for (const bool overlap : {false, true}) {
          expect_same(reference, run({.ranks = ranks}, scenario(c, stage, overlap)),
                      std::string(c.name) + ", " + std::to_string(ranks) + " ranks, stage " +
                          std::to_string(stage) + (overlap ? ", overlap" : ""));
        }
        expect_same(reference, run({.ranks = ranks, .compute_worker = true}, scenario(c, stage, true)),
                    std::string(c.name) + ", worker, stage " + std::to_string(stage));
      }
    }
  }
}

TEST(NarrowGather, TheCoreReadsWhatTravelledAndTheMastersKeepTheirBits) {
  for (const int stage : {1, 3}) {
    comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
      Rank rank(collectives, device, scenario(kCases[0], stage, true));
      rank.initialise();
      rank.steps(0, 2);
      rank.store().synchronize(rank.compute());
      State masters = merge(collectives, rank.store().owned_slices());
      const auto& groups = rank.store().layout().groups;
      std::size_t rounded = 0, matrices = 0;
      for (int g = 0; g < static_cast<int>(groups.size()); ++g) {
        const auto& parameters = rank.store().acquire(g, model::Pass::forward, rank.compute());
        rank.compute().synchronize();
        const auto& segments = groups[static_cast<std::size_t>(g)].segments;
        for (std::size_t s = 0; s < segments.size(); ++s) {
          if (!segments[s].trainable) continue;
          const bool narrow = segments[s].kind == model::ParameterKind::matrix && segments[s].used >= 1024;
          for (std::size_t t = 0; t < segments[s].tensors.size(); ++t) {
            for (const model::NamedPart& part : segments[s].tensors[t].parts) {
              const auto& master = masters.at(part.name);
              const auto* copy = static_cast<const float*>(parameters(s, t).data) + part.begin;
              for (std::size_t i = 0; i < master.size(); ++i) {
                const float expected = narrow ? from_bf16(to_bf16(master[i])) : master[i];
                ASSERT_EQ(copy[i], expected) << part.name << " " << i;
                rounded += expected != master[i];
              }
              matrices += narrow;
            }
          }
        }
        rank.store().release(g, model::Pass::forward, rank.compute());
      }
      EXPECT_GT(matrices, 0u);
      EXPECT_GT(rounded, 1000u) << "masters have lost what the copies do not have";
    });
  }
}

TEST(NarrowGather, AFormatThatIsNotNarrowerChangesNothing) {
  Case plain{"bf16 as bf16", DType::bf16, precision::RecipeKind::none, comm::Wire::bf16};
  const Outcome a = run({.ranks = 2}, scenario(plain, 1, true));
  plain.wire = comm::Wire::f32;
  expect_same(run({.ranks = 2}, scenario(plain, 1, true)), a, "bf16 as bf16");
  // Nothing is gathered at stage 0, or with one rank.
  expect_same(
      run({.ranks = 2}, scenario({"", DType::f32, precision::RecipeKind::none, comm::Wire::f32}, 0, true)),
      run({.ranks = 2}, scenario(kCases[1], 0, true)), "stage 0");
  expect_same(
      run({.ranks = 1}, scenario({"", DType::f32, precision::RecipeKind::none, comm::Wire::f32}, 3, true)),
      run({.ranks = 1}, scenario(kCases[1], 3, true)), "alone");
}

TEST(NarrowGather, AStateThatWasSavedIsLoadedAndGathersTheSameBits) {
  const Scenario s = scenario(kCases[2], 3, true);
  const Outcome saved = run({.ranks = 3}, s);
  const Outcome loaded =
      on_threads({.ranks = 2}, scenario(kCases[2], 1, true), [&](Rank& rank) { rank.load(saved.state); });
  EXPECT_EQ(difference(saved.state, loaded.state), "");
  EXPECT_EQ(saved.copies[0], loaded.copies[0]);
}

TEST(NarrowGather, BytesOnTheWireAreThoseOfTheFormat) {
  for (const auto& [wire, bytes_of_128] :
       {std::pair{comm::Wire::f32, 512}, {comm::Wire::bf16, 256}, {comm::Wire::fp8, 132}}) {
    comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job&, comm::Collectives& collectives, Device& device) {
      Rank rank(collectives, device, scenario({"", DType::f32, precision::RecipeKind::none, wire}, 1, true));
      rank.initialise();
      rank.store().synchronize(rank.compute());
      std::int64_t expected = 0, sent = 0;
      for (const model::GroupSpec& group : rank.store().layout().groups) {
        for (const model::SegmentSpec& s : group.segments) {
          const bool narrow = s.kind == model::ParameterKind::matrix && s.used >= 1024;
          if (!s.trainable) continue;  // whole on every rank
          expected += model::padded_count(s, 2) / 2 / 128 * (narrow ? bytes_of_128 : 512);
        }
      }
      for (const comm::Traffic& t : collectives.take_traffic()) {
        if (t.kind.starts_with("all_gather")) sent += t.bytes_sent;
      }
      EXPECT_EQ(sent, expected) << static_cast<int>(wire);
    });
  }
}

}  // namespace
}  // namespace octet::store::narrow_gather_test
