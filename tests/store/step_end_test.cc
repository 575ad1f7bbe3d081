// Waits between ranks at the end of a micro-batch and of a step, and the order of messages.
#include <algorithm>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "../src/store/activation_amaxes.h"
#include "octet/base/json.h"
#include "store/synthetic.h"

namespace octet::store::step_end_test {
namespace {

using namespace synthetic;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Two ranks have amaxes of an input and a gradient each. Rank 1 reaches the end of the first micro-batch
// late. Rank 0 has then passed this end and the next forward pass, and waits only before backward.
TEST(StepEnd, ALateRankIsWaitedForWhenTheNextBackwardPassBegins) {
  constexpr auto late = std::chrono::milliseconds(400);
  const precision::Recipe recipe{
      .kind = precision::RecipeKind::delayed, .compute = DType::bf16, .history_length = 4};
  comm::run_ranks_as_threads(
      {.ranks = 2, .compute_worker = true}, [&](comm::Job&, comm::Collectives& c, Device& device) {
        Arena arena(device);
        precision::ScaleSet scales(arena, "activations", recipe, {DType::e4m3, DType::e5m2},
                                   {"input", "gradient"});
        const auto compute = device.make_stream({.name = "compute"});
        ActivationAmaxes amaxes(c, device, {.recipe = recipe});
        const auto raise = [&](int i, float value) {
          cpu::enqueue(*compute, [&, i, value] { *scales.amax(i) = std::max(*scales.amax(i), value); });
        };
        const auto rank = static_cast<float>(c.rank());
        c.channel().barrier();
        const auto start = Clock::now();
        amaxes.begin(&scales);
        raise(0, 2 + rank);
        amaxes.blocks_done(*compute);
        raise(1, 4 - rank);
        if (c.rank() == 1) std::this_thread::sleep_for(late);
        amaxes.end(*compute);
        compute->synchronize();
        EXPECT_TRUE(c.rank() == 1 || seconds_since(start) < 0.3) << "nothing of a late rank is needed here";
        EXPECT_EQ(*scales.scale(0), 448.0f / 3) << "of inputs, by those of all ranks";
        amaxes.begin(&scales);
        raise(0, 1.0f);
        amaxes.blocks_done(*compute);
        compute->synchronize();
        EXPECT_GT(seconds_since(start), 0.35) << "of gradients, which the products that follow read";
        EXPECT_EQ(*scales.scale(1), 57344.0f / 4);
        EXPECT_EQ(*scales.scale(0), 448.0f / 3) << "which recomputation still reads";
        amaxes.end(*compute);
        compute->synchronize();
        c.gather_stream().synchronize();
        c.channel().barrier();
      });
}

// Returns the names of the collectives on the gather queue from the end of a step on, in order.
std::vector<std::string> gathers_after(int stage, precision::RecipeKind kind) {
  Scenario s;
  s.micro_batches = 1;
  s.blocks = 2;
  s.options.stage = stage;
  s.options.recipe = {.kind = kind, .compute = DType::bf16, .history_length = 4};
  std::vector<std::string> names;
  comm::run_ranks_as_threads({.ranks = 2}, [&](comm::Job& job, comm::Collectives& c, Device& device) {
    Rank rank(c, device, s);
    rank.initialise();
    rank.store().synchronize(rank.compute());
    c.channel().barrier();
    const auto on_queue = [&] {
      std::vector<std::string> found;
      for (const Json& one : parse_json(job.trace(), "trace")) {
        if (one["queue"] == "gather") found.push_back(one["name"]);
      }
      return found;
    };
    const std::size_t before = on_queue().size();
    rank.step(0);
    rank.store().synchronize(rank.compute());
    c.channel().barrier();
    if (c.rank() != 0) return;
    names = on_queue();
    names.erase(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(before));
  });
  return names;
}

// Forward needs the embedding first. Groups that need the scales of all ranks follow when these are complete.
TEST(StepEnd, GroupsAreGatheredInTheOrderInWhichTheyAreReady) {
  const auto position = [](const std::vector<std::string>& names, const std::string& part) {
    return std::ranges::find_if(names,
                                [&](const std::string& n) { return n.find(part) != std::string::npos; }) -
           names.begin();
  };
  for (const precision::RecipeKind kind : {precision::RecipeKind::current, precision::RecipeKind::delayed}) {
    const std::vector<std::string> names = gathers_after(1, kind);
    const auto end = static_cast<std::ptrdiff_t>(names.size());
    const auto embedding = position(names, "embedding"), first = position(names, "layers.0"),
               second = position(names, "layers.1");
    EXPECT_LT(embedding, first);
    EXPECT_LT(first, second);
    EXPECT_LT(second, end);
    EXPECT_EQ(position(names, "amaxes of weights"), end) << "which would stand behind gathers";
    EXPECT_EQ(position(names, "amaxes of inputs") < end, kind == precision::RecipeKind::delayed);
    if (kind == precision::RecipeKind::delayed) {
      EXPECT_EQ(position(names, "amaxes of inputs"), 0);
      EXPECT_EQ(position(names, "amaxes of gradients"), 1);
    }
  }
}

}  // namespace
}  // namespace octet::store::step_end_test
