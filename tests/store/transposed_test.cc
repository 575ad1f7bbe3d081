// Transposed copies of FP8 weights for GPU GEMMs, kept or made at each use. The CPU device uses the memory
// layout of a GPU. The backward pass of the synthetic model reads only the transposed copies.
#include <map>

#include "store/synthetic.h"

namespace octet::store::transposed_test {
namespace {

using namespace synthetic;

Scenario scenario(int stage, precision::RecipeKind kind, bool parts, TransposedWeights when) {
  Scenario s;
  s.options.stage = stage;
  s.options.recipe = {.kind = kind, .compute = DType::bf16, .history_length = 4, .scale_parts = parts};
  s.options.transposed = when;
  return s;
}

void expect_same(const Outcome& a, const Outcome& b, const std::string& what) {
  EXPECT_EQ(difference(a.state, b.state), "") << what;
  EXPECT_EQ(difference(a.gradients, b.gradients), "") << what;
  for (const std::int64_t hash : b.copies) EXPECT_EQ(hash, a.copies[0]) << what;
}

TEST(TransposedWeights, MadeAtUseGiveTheBitsOfKeptOnesAndOfNone) {
  using precision::RecipeKind;
  for (const auto& [kind, parts] : {std::pair{RecipeKind::delayed, false}, {RecipeKind::current, true}}) {
    for (const int ranks : {1, 3}) {
      for (const int stage : {0, 1, 2, 3}) {
        const Outcome none = run({.ranks = ranks}, scenario(stage, kind, parts, TransposedWeights::kept));
        for (const auto when : {TransposedWeights::kept, TransposedWeights::at_use}) {
          // Compute runs on a worker thread, so that late reads or early reuse show.
          const ThreadRun how{.ranks = ranks, .compute_worker = true, .stands_for = DeviceKind::cuda};
          expect_same(none, run(how, scenario(stage, kind, parts, when)),
                      std::to_string(ranks) + " ranks, stage " + std::to_string(stage) +
                          (when == TransposedWeights::kept ? ", kept" : ", at use"));
        }
      }
    }
  }
}

/// Returns the bytes of the transposed copies on a rank.
std::size_t transposed_bytes(const Options& options, int ranks, int blocks) {
  std::size_t bytes = 0;
  comm::run_ranks_as_threads({.ranks = ranks, .stands_for = DeviceKind::cuda},
                             [&](comm::Job&, comm::Collectives& collectives, Device& device) {
                               Arena arena(device);
                               const ParameterStore store(layout(blocks), arena, collectives, options);
                               if (collectives.rank() > 0) return;
                               for (const Reservation& r : arena.reservations()) {
                                 if (r.name == "parameters/transposed") bytes += r.bytes;
                               }
                             });
  return bytes;
}

TEST(TransposedWeights, MadeAtUseTakeTheMemoryOfOneBlock) {
  for (const int ranks : {1, 2}) {
    Options options = scenario(0, precision::RecipeKind::delayed, false, TransposedWeights::kept).options;
    const std::size_t one = transposed_bytes(options, ranks, 1);
    EXPECT_GT(one, 0u);
    EXPECT_GT(transposed_bytes(options, ranks, 6), 5 * one);
    options.transposed = TransposedWeights::at_use;
    for (const int stage : {0, 1, 2, 3}) {
      options.stage = stage;
      EXPECT_LE(transposed_bytes(options, ranks, 6), one + 512) << "stage " << stage;
    }
    options.training = false;
    EXPECT_EQ(transposed_bytes(options, ranks, 6), 0u) << "nothing but a backward pass reads them";
  }
}

}  // namespace
}  // namespace octet::store::transposed_test
