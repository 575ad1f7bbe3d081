// Rows for experts of other ranks in a narrow format (exchange_dtype).
#include "train/expert_parallel.h"

namespace octet::train::expert_wire_test {
namespace {

using namespace expert_parallel_test;

/// The bytes of all ranks that the plan counts.
std::int64_t planned(const How& how) {
  const comm::Place place{.size = how.ranks,
                          .local_size = how.ranks,
                          .node_of = std::vector<int>(static_cast<std::size_t>(how.ranks))};
  runtime::InstanceOptions options = options_of(how);
  options.transformer.max_tokens = options.transformer.max_length = 40;
  return how.ranks * plan_messages(options, place, DeviceKind::cpu, how.micro)[0].exchanged.bytes;
}

// Every token takes every expert, so that every rank gets the same number of rows.
TEST(ExpertWire, SendsTheBytesOfThePlan) {
  const How wide{.ranks = 2, .split = 2, .taken = 4, .equal = true};
  const Result reference = train(wide, 0, 1);
  EXPECT_EQ(reference.exchanged, planned(wide));
  // Hidden values have 32 floats, and each row has two fp32 weights, one each way.
  for (const auto& [wire, share] : {std::pair{"bf16", 0.52}, std::pair{"fp8", 0.28}}) {
    How narrow = wide;
    narrow.wire = wire;
    const Result found = train(narrow, 0, 1);
    EXPECT_EQ(found.exchanged, planned(narrow)) << wire;
    EXPECT_LT(static_cast<double>(found.exchanged), share * static_cast<double>(reference.exchanged)) << wire;
  }
}

// Values are rounded three times between two layers: on the way to an expert, back, and in the gradient. E4M3
// has a relative error of at most 1/16, and of about 0.026 on average; bf16 has 1/16 of that.
void expect_rounding(const std::vector<How>& all) {
  for (const How& how : all) {
    const Result exact = train(how, 0, 1);
    double error[2];
    for (const int narrow : {0, 1}) {
      How sent = how;
      sent.wire = narrow == 0 ? "bf16" : "fp8";
      const Result found = train(sent, 0, 1);
      error[narrow] = mean_distance(found.gradients, exact.gradients);
      EXPECT_NEAR(found.losses[0], exact.losses[0], (narrow == 0 ? 1e-3 : 2e-2) * exact.losses[0]);
    }
    EXPECT_GT(error[0], 1e-4);
    EXPECT_LT(error[0], 0.01);
    EXPECT_GT(error[1], 5 * error[0]);
    EXPECT_LT(error[1], 0.15);
  }
}

TEST(ExpertWire, RoundsValues) {
  expect_rounding({How{.ranks = 2, .split = 2, .stage = 2, .empty = 1}});
}

TEST(WholeExpertWire, RoundsValues) {
  expect_rounding({How{.ranks = 4, .split = 2, .stage = 1, .taken = 1, .recompute = "full"},
                   How{.ranks = 2, .split = 2, .worker = true, .shared = 32, .adapters = "lora"}});
}

TEST(ExpertWire, ReservesItsBuffers) {
  const auto bytes = [](const How& how) {
    const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
    return plan_memory(options_of(how), place, DeviceKind::cpu).bytes;
  };
  How narrow{.split = 2};
  const auto wide = bytes(narrow);
  narrow.wire = "fp8";
  EXPECT_GT(bytes(narrow), wide);
}

}  // namespace
}  // namespace octet::train::expert_wire_test
