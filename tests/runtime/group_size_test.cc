// Which ranks form a sharding group.
#include "octet/runtime/group_size.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/comm/job.h"

namespace octet::runtime::group_size_test {
namespace {

comm::Place on_hosts(std::vector<int> node_of) {
  comm::Place place;
  place.size = static_cast<int>(node_of.size());
  place.nodes = 1 + *std::max_element(node_of.begin(), node_of.end());
  place.node_of = std::move(node_of);
  return place;
}

store::Options stage(int number, bool strict = false, int micro_batches = 1) {
  store::Options options;
  options.stage = number;
  options.strict = strict;
  options.micro_batches = micro_batches;
  return options;
}

int group(const comm::Place& place, std::int64_t wish, const store::Options& options = stage(2)) {
  return group_of(*comm::make_dry_job(place), wish, options);
}

std::string refusal(const comm::Place& place, std::int64_t wish, const store::Options& options = stage(2)) {
  try {
    group(place, wish, options);
  } catch (const Error& error) {
    EXPECT_EQ(error.problem().code, ExitCode::usage);
    return error.problem().expected + "; " + error.problem().found;
  }
  return "accepted";
}

using Sizes = std::vector<std::int64_t>;

TEST(GroupSize, FollowsTheWish) {
  const comm::Place even = on_hosts({0, 0, 1, 1, 2, 2});
  EXPECT_EQ(group(even, kGroupOfAll), 0);
  EXPECT_EQ(group(even, kGroupOfNode), 2);
  EXPECT_EQ(group(even, kAutomaticGroup), 2);
  for (const int size : {1, 2, 3, 6}) EXPECT_EQ(group(even, size), size);
  EXPECT_EQ(group(even, 4, stage(0)), 0) << "stage 0 shards nothing";
  EXPECT_EQ(group(on_hosts({0}), kGroupOfNode), 0) << "one rank shards nothing";
  EXPECT_EQ(group(on_hosts({0, 0, 0, 0}), kGroupOfNode), 4) << "all ranks of the only host";
}

TEST(GroupSize, DividesTheRanks) {
  const comm::Place even = on_hosts({0, 0, 1, 1, 2, 2});
  EXPECT_EQ(refusal(even, 4), "a divisor of the number of ranks, 6; zero_group_size 4");
  EXPECT_EQ(refusal(even, 12), "a divisor of the number of ranks, 6; zero_group_size 12");
}

TEST(GroupSize, OfAHostNeedsEvenHosts) {
  for (const std::vector<int>& nodes : {std::vector<int>{0, 0, 0, 1}, {0, 0, 0, 1, 1, 2}, {0, 1, 0, 1}}) {
    EXPECT_NE(refusal(on_hosts(nodes), kGroupOfNode).find("equal numbers of adjacent ranks"),
              std::string::npos);
  }
}

TEST(GroupSize, OfAStrictRunIsANodeOfTheTree) {
  const comm::Place six = on_hosts({0, 0, 1, 1, 2, 2});
  EXPECT_EQ(group(six, 2, stage(2, true, 4)), 2);
  EXPECT_EQ(refusal(six, 2, stage(2, true, 3)),
            "with deterministic: strict, a group with 2, 4, 8, ... micro-batches in a step, or all ranks; "
            "zero_group_size 2 with 3 micro-batches on each rank");
  EXPECT_EQ(group(six, 6, stage(2, true, 3)), 6);
  EXPECT_EQ(group(six, 1, stage(2, true, 3)), 1);
  EXPECT_EQ(automatic_groups(six, stage(2, true, 3)), Sizes{6});
}

TEST(GroupSize, GrowsByHosts) {
  EXPECT_EQ(automatic_groups(on_hosts({0, 0, 1, 1, 2, 2, 3, 3}), stage(3)), (Sizes{2, 4, 8}));
  EXPECT_EQ(automatic_groups(on_hosts({0, 0, 1, 1, 2, 2}), stage(3)), (Sizes{2, 6}));
  EXPECT_EQ(automatic_groups(on_hosts({0, 0, 0, 1}), stage(3)), (Sizes{2, 4}));
  EXPECT_EQ(automatic_groups(on_hosts({0, 0, 1}), stage(3)), Sizes{3});
  EXPECT_EQ(automatic_groups(on_hosts({0, 0}), stage(3)), Sizes{2});
}

}  // namespace
}  // namespace octet::runtime::group_size_test
