// The ranks that the hashes of all ranks identify as faulty.
#include "../src/train/faults/fault_verdict.h"

#include <gtest/gtest.h>

namespace octet::train::fault_verdict_test {
namespace {

using Ranks = std::vector<int>;

ops::Hash hash(std::uint64_t n) {
  return {n, ~n};
}

std::vector<FaultReport> alike(int ranks) {
  FaultReport one{.scales = hash(1), .sums = hash(2)};
  for (std::size_t k = 0; k < store::kHeldKinds; ++k) one.replicas[k] = hash(10 + k);
  return std::vector<FaultReport>(static_cast<std::size_t>(ranks), one);
}

/// The gradients of a micro-batch are a number that identifies its rank.
std::vector<FaultReport> replayed(int ranks, int shift) {
  std::vector<FaultReport> reports = alike(ranks);
  for (int r = 0; r < ranks; ++r) {
    reports[static_cast<std::size_t>(r)].own = hash(100 + static_cast<std::uint64_t>(r));
    reports[static_cast<std::size_t>(r)].replayed =
        hash(100 + static_cast<std::uint64_t>((r + shift) % ranks));
  }
  return reports;
}

TEST(Faults, TheMinorityIsNamed) {
  EXPECT_TRUE(faults_in(alike(4)).empty());
  for (int wrong = 0; wrong < 4; ++wrong) {
    auto reports = alike(4);
    reports[static_cast<std::size_t>(wrong)].replicas[1] = hash(999);
    const auto faults = faults_in(reports);
    ASSERT_EQ(faults.size(), 1u);
    EXPECT_EQ(faults[0].ranks, Ranks{wrong});
    EXPECT_EQ(faults[0].what, "masters differ between ranks");
  }
  auto sums = alike(3);
  sums[2].sums = {};
  EXPECT_EQ(faults_in(sums).at(0).ranks, Ranks{2});
  auto scales = alike(3);
  scales[0].scales = {};
  EXPECT_EQ(faults_in(scales).at(0).what, "scales of activations differ between ranks");
}

TEST(Faults, OfTwoNobodyIsTheMinority) {
  auto reports = alike(2);
  reports[1].replicas[0] = hash(5);
  EXPECT_EQ(faults_in(reports).at(0).ranks, (Ranks{0, 1}));
  auto halves = alike(4);
  halves[0].sums = halves[2].sums = hash(6);
  EXPECT_EQ(faults_in(halves).at(0).ranks, (Ranks{0, 1, 2, 3}));
}

TEST(Faults, WhatARankFindsWithItselfComesFirst) {
  auto reports = alike(2);
  reports[0].changed[2] = true;
  reports[0].replicas[0] = hash(5);
  reports[1].broken.push_back({.from = 0, .to = 1, .name = "reduce_scatter 'head'"});
  const auto faults = faults_in(reports);
  ASSERT_EQ(faults.size(), 2u);
  EXPECT_EQ(faults[0].ranks, Ranks{0});
  EXPECT_EQ(faults[0].what, "moments changed between two updates");
  EXPECT_EQ(faults[1].ranks, Ranks{1});
  EXPECT_EQ(faults[1].what, "a message of reduce_scatter 'head' from rank 0 was changed on its way");
}

TEST(Faults, AThirdRankDecidesWhoComputedWrong) {
  for (const int ranks : {3, 4, 7}) {
    for (int shift = 1; shift < ranks; ++shift) {
      EXPECT_TRUE(differing(replayed(ranks, shift), shift).empty());
      const int second = 1 + shift % (ranks - 1);
      std::vector<ops::Hash> thirds;
      for (const FaultReport& r : replayed(ranks, second)) thirds.push_back(r.replayed);
      for (int wrong = 0; wrong < ranks; ++wrong) {
        auto first = replayed(ranks, shift);
        first[static_cast<std::size_t>(wrong)].own = hash(7);
        EXPECT_EQ(differing(first, shift), Ranks{wrong});
        auto faults = faults_of_replays(first, shift, thirds, second);
        ASSERT_EQ(faults.size(), 1u);
        EXPECT_EQ(faults[0].ranks, Ranks{wrong}) << "who computed it first";
        auto again = replayed(ranks, shift);
        again[static_cast<std::size_t>(wrong)].replayed = hash(7);
        faults = faults_of_replays(again, shift, thirds, second);
        ASSERT_EQ(faults.size(), 1u);
        EXPECT_EQ(faults[0].ranks, Ranks{wrong}) << "who computed it again";
      }
    }
  }
}

TEST(Faults, WithoutAThirdBothAreNamedAndALoneRankOnce) {
  auto two = replayed(2, 1);
  two[1].own = hash(7);
  EXPECT_EQ(faults_of_replays(two, 1, {}, 0).at(0).ranks, (Ranks{1, 0}));
  auto one = replayed(1, 0);
  one[0].own = hash(7);
  EXPECT_EQ(faults_of_replays(one, 0, {}, 0).at(0).ranks, Ranks{0});
}

TEST(Faults, AReportArrivesAsItWasSent) {
  FaultReport report = replayed(3, 1)[2];
  report.own = {~0ull, 1};
  report.changed[3] = true;
  report.broken.push_back({.from = 2, .to = 0, .name = "all_gather 'x\"y'"});
  const FaultReport other = FaultReport::of(report.bytes());
  EXPECT_EQ(other.replicas, report.replicas);
  EXPECT_EQ(other.own, report.own);
  EXPECT_EQ(other.replayed, report.replayed);
  EXPECT_EQ(other.sums, report.sums);
  EXPECT_EQ(other.scales, report.scales);
  EXPECT_EQ(other.changed, report.changed);
  ASSERT_EQ(other.broken.size(), 1u);
  EXPECT_EQ(other.broken[0].name, report.broken[0].name);
}

}  // namespace
}  // namespace octet::train::fault_verdict_test
