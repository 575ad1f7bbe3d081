// Bounded buffers for rows of experts (exchange_rows_factor).
#include "train/expert_parallel.h"

namespace octet::train::expert_room_test {
namespace {

using namespace expert_parallel_test;

std::size_t activations(const How& how) {
  const comm::Place place{.size = 4, .local_size = 4, .node_of = {0, 0, 0, 0}};
  std::size_t sum = 0;
  for (const auto& row : plan_memory(options_of(how), place, DeviceKind::cpu).by_part())
    sum += row.name == "activations" ? row.bytes : 0;
  return sum;
}

// Micro-batches have 28 to 40 of 64 tokens, so a factor of 1.25 holds all rows.
void expect_bits(const std::vector<How>& all, int steps) {
  for (const How& how : all) {
    How bounded = how;
    bounded.room = 1.25;
    EXPECT_LT(activations(bounded), activations(how));
    expect_same(train(bounded, 0, steps), train(how, 0, steps));
  }
}

TEST(ExpertRoom, HasTheBitsOfRoomForEveryCase) {
  expect_bits({How{.ranks = 2, .split = 2, .stage = 2}}, 1);
}

TEST(WholeExpertRoom, HasTheBitsOfRoomForEveryCase) {
  expect_bits({How{.split = 4, .stage = 1}, How{.split = 4, .deterministic = false, .recompute = "full"},
               How{.ranks = 2, .split = 2, .stage = 3, .worker = true, .fp8 = "delayed"},
               How{.ranks = 2, .split = 2, .deterministic = false, .adapters = "dora"}},
              2);
}

TEST(ExpertRoom, IsPlanned) {
  How how{.split = 4};
  const std::size_t every = activations(how);
  how.room = 1;
  const std::size_t even = activations(how);
  how.room = 1.25;
  EXPECT_LT(even, activations(how));
  EXPECT_LT(activations(how), every);
  how.room = 100;
  EXPECT_EQ(activations(how), every);
}

struct Refusals {
  int ranks = 0;
  std::vector<Problem> said;
};

Refusals refusals_of(const How& how) {
  std::mutex mutex;
  Refusals all;
  comm::run_ranks_as_threads({.ranks = how.ranks},
                             [&](comm::Job& job, comm::Collectives& data, Device& device) {
                               Engine engine(device, job, data, options_of(how));
                               engine.initialise(7);
                               engine.begin(2);
                               try {
                                 engine.micro_batch(batch_of(how, job.rank(), 0));
                               } catch (const Error& error) {
                                 EXPECT_EQ(error.code(), ExitCode::usage);
                                 const std::scoped_lock lock(mutex);
                                 ++all.ranks;
                                 if (!error.problem().what.empty()) all.said.push_back(error.problem());
                               }
                             });
  return all;
}

TEST(ExpertRoom, RefusesMoreRowsOnAllRanks) {
  const auto [refused, said] = refusals_of({.ranks = 2, .split = 2, .room = 0.25});
  EXPECT_EQ(refused, 2);
  ASSERT_EQ(said.size(), 1U) << "one message";
  EXPECT_TRUE(said[0].agreed) << "all ranks end by themselves";
  EXPECT_EQ(said[0].expected, "at most 32 rows") << "a quarter of 64 tokens with two experts each";
  EXPECT_TRUE(said[0].where.starts_with("exchange_rows_factor")) << said[0].where;
  EXPECT_NE(said[0].fix.find("set exchange_rows_factor: 0."), std::string::npos) << said[0].fix;
}

// The other groups do not know of the refusal, so the rank with the message aborts the job.
TEST(ExpertRoom, AGroupThatRefusesRowsAbortsTheJob) {
  const auto [refused, said] = refusals_of({.ranks = 4, .split = 2, .room = 0.25});
  EXPECT_EQ(refused, 4);
  ASSERT_EQ(said.size(), 2U) << "one message of each group";
  for (const Problem& problem : said) EXPECT_FALSE(problem.agreed);
}

}  // namespace
}  // namespace octet::train::expert_room_test
