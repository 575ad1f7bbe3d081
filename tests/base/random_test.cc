#include "octet/base/random.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace octet::random_test {
namespace {

using Words = std::array<std::uint32_t, 4>;

// The vectors that come with Random123, the generator's reference implementation.
TEST(Philox, GivesTheKnownAnswers) {
  EXPECT_EQ(philox_rounds<10>(0, 0, 0, 0, 0, 0), (Words{0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8}));
  constexpr std::uint32_t ones = 0xFFFFFFFF;
  EXPECT_EQ(philox_rounds<10>(ones, ones, ones, ones, ones, ones),
            (Words{0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD}));
  EXPECT_EQ(philox_rounds<10>(0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0),
            (Words{0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1}));
  EXPECT_EQ(philox_rounds<7>(0, 0, 0, 0, 0, 0), (Words{0x5F6FB709, 0x0D893F64, 0x4F121F81, 0x4F730A48}));
}

TEST(Philox, EveryPartOfItsCounterAndKeyCounts) {
  const Words base = philox(1, RandomUse::data, 2, 3);
  EXPECT_NE(philox(2, RandomUse::data, 2, 3), base);
  EXPECT_NE(philox(1 | std::uint64_t{1} << 40, RandomUse::data, 2, 3), base);
  EXPECT_NE(philox(1, RandomUse::init, 2, 3), base);
  EXPECT_NE(philox(1, RandomUse::data, 3, 3), base);
  EXPECT_NE(philox(1, RandomUse::data, 2 | std::uint64_t{1} << 40, 3), base);
  EXPECT_NE(philox(1, RandomUse::data, 2, 4), base);
}

TEST(Normal, HasTheMomentsAndTheTailOfANormalNumber) {
  constexpr int n = 200000;
  double sum = 0, squares = 0, fourth = 0;
  int beyond_two = 0;
  for (std::uint64_t i = 0; i < n; ++i) {
    const double x = static_cast<double>(normal(5, RandomUse::init, i));
    sum += x, squares += x * x, fourth += x * x * x * x;
    beyond_two += std::abs(x) > 2 ? 1 : 0;
  }
  // Five standard deviations of each estimate.
  EXPECT_NEAR(sum / n, 0, 5 / std::sqrt(n));
  EXPECT_NEAR(squares / n, 1, 5 * std::sqrt(2.0 / n));
  EXPECT_NEAR(fourth / n, 3, 5 * std::sqrt(96.0 / n));
  EXPECT_NEAR(beyond_two / double{n}, 0.0455003, 5 * std::sqrt(0.0455 / n));
}

TEST(Below, StaysBelowAndReachesEveryNumber) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 200; ++i) {
    const auto r = philox(3, RandomUse::data, i);
    const std::uint64_t x = below(7, r[0], r[1]);
    ASSERT_LT(x, 7u);
    seen.insert(x);
  }
  EXPECT_EQ(seen.size(), 7u);
  EXPECT_EQ(below(1000, 0xFFFFFFFF, 0xFFFFFFFF), 999u);
}

TEST(Permute, IsAPermutationThatTheSeedAndTheRoundChoose) {
  for (const std::uint64_t n : {1, 2, 3, 4, 5, 64, 1000}) {
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < n; ++i) seen.insert(permute(i, n, 7, 1));
    EXPECT_EQ(seen.size(), n);
    EXPECT_EQ(*seen.rbegin(), n - 1);
  }
  const auto order = [](std::uint64_t seed, std::uint32_t round) {
    std::vector<std::uint64_t> all;
    for (std::uint64_t i = 0; i < 50; ++i) all.push_back(permute(i, 50, seed, round));
    return all;
  };
  EXPECT_NE(order(7, 1), order(7, 2));
  EXPECT_NE(order(7, 1), order(8, 1));
}

}  // namespace
}  // namespace octet::random_test
