// Rates between pairs, where the link is known.
#include "octet/runtime/rank_facts.h"

#include <gtest/gtest.h>

#include <set>

#include "octet/comm/thread_ranks.h"

namespace octet::runtime::link_rates_test {
namespace {

TEST(LinkRates, EveryPairHasItsTurnOnceAndNoRankIsInTwoOfARound) {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 17}) {
    for (const bool alone : {true, false}) {
      std::set<std::pair<int, int>> seen;
      for (const auto& round : rounds_of_pairs(ranks, alone)) {
        std::set<int> busy;
        EXPECT_TRUE(!alone || round.size() == 1u);
        for (const auto& [a, b] : round) {
          EXPECT_LT(a, b);
          EXPECT_TRUE(a >= 0 && b < ranks);
          EXPECT_TRUE(seen.insert({a, b}).second) << a << " and " << b << " of " << ranks;
          EXPECT_TRUE(busy.insert(a).second && busy.insert(b).second);
        }
      }
      EXPECT_EQ(seen.size(), static_cast<std::size_t>(ranks * (ranks - 1) / 2));
      if (!alone && ranks > 1) {
        EXPECT_EQ(rounds_of_pairs(ranks, false).size(), static_cast<std::size_t>(ranks - 1 + ranks % 2));
      }
    }
  }
}

TEST(LinkRates, AreThoseOfTheLink) {
  constexpr double link = 2e7;
  constexpr std::size_t bytes = 2000000;  // 0.1 s
  comm::run_ranks_as_threads({.ranks = 3, .bytes_per_second = link},
                             [](comm::Job&, comm::Collectives& c, Device& device) {
                               const std::vector<double> rates = pair_rates(c, device, bytes, 2);
                               ASSERT_EQ(rates.size(), 9u);
                               for (int a = 0; a < 3; ++a) {
                                 for (int b = 0; b < 3; ++b) {
                                   const double rate = rates[static_cast<std::size_t>(3 * a + b)];
                                   if (a == b) {
                                     EXPECT_EQ(rate, 0);
                                   } else {
                                     EXPECT_LE(rate, 1.05 * link) << a << b;
                                     EXPECT_GE(rate, 0.5 * link) << a << b;
                                   }
                                 }
                               }
                             });
}

}  // namespace
}  // namespace octet::runtime::link_rates_test
