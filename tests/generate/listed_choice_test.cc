// Choices from the largest logits of a row equal choices from the whole row, to the last bit, or are nullopt.
#include "listed_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/device/cpu.h"

namespace octet::generate::listed_choice_test {
namespace {

using Tokens = std::vector<std::int32_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();

/// Lists rows like a decoder.
class Lister {
 public:
  explicit Lister(std::int64_t most) : most_(most), listed_(static_cast<std::size_t>(most)) {}
  std::int64_t most() const { return most_; }
  /// Valid until the next call.
  ListedRow list(const std::vector<float>& logits, const ListingWish& wish, bool normalizers = false) {
    const auto vocabulary = std::ssize(logits);
    ops::listed_logits(*stream_,
                       {.logits = ops::ConstMatrix(logits.data(), DType::f32, 1, vocabulary, vocabulary),
                        .normalizers = normalizers,
                        .temperatures = &wish.temperature,
                        .draws = &wish.draw,
                        .most = most_,
                        .rows = &row_,
                        .listed = listed_.data()});
    stream_->synchronize();
    return {.row = row_,
            .listed = {listed_.data(), static_cast<std::size_t>(row_.count)},
            .vocabulary = vocabulary};
  }

 private:
  std::int64_t most_;
  std::unique_ptr<Device> device_ = make_cpu_device({.threads = 1});
  std::unique_ptr<Stream> stream_ = device_->make_stream({.name = "test"});
  ops::RowOfLogits row_;
  std::vector<ops::ListedLogit> listed_;
};

/// Logits with the distribution of real models: most are close together, a few are large. `rounded`: many are
/// equal.
std::vector<float> logits_of(std::size_t vocabulary, std::uint32_t seed, double outstanding, bool rounded) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0, 2);
  std::exponential_distribution<double> above(1 / outstanding);
  std::vector<float> logits(vocabulary);
  for (std::size_t i = 0; i < vocabulary; ++i) {
    double x = normal(random) - 1;
    if (random() % 200 == 0) x += above(random);
    if (rounded) x = std::round(x * 2) / 2;
    logits[i] = static_cast<float>(x);
    if (random() % 50 == 0) logits[i] = -kInf;
  }
  return logits;
}

Tokens seen_of(const std::vector<float>& logits, std::uint32_t seed) {
  std::mt19937 random(seed);
  Tokens seen;
  for (int i = 0; i < 30; ++i) seen.push_back(static_cast<std::int32_t>(random() % logits.size()));
  // Tokens with large logits were seen, like in real texts.
  seen.push_back(static_cast<std::int32_t>(std::ranges::max_element(logits) - logits.begin()));
  return seen;
}

std::string text_of(const Sampling& s) {
  return "temperature " + std::to_string(s.temperature) + ", top_k " + std::to_string(s.top_k) + ", top_p " +
         std::to_string(s.top_p) + ", min_p " + std::to_string(s.min_p) + ", penalty " +
         std::to_string(s.repetition_penalty);
}

/// Compares the choice from a listing with the choice from the whole row. Returns true if the listing
/// sufficed.
bool expect_as_whole(Lister& lister, const std::vector<float>& logits, const Sampling& sampling,
                     const Draw& draw, const Tokens& seen, const Tokens& forbidden) {
  SCOPED_TRACE(text_of(sampling) + (forbidden.empty() ? "" : ", without some"));
  std::vector<float> allowed = logits;
  for (const std::int32_t id : forbidden) allowed[static_cast<std::size_t>(id)] = -kInf;
  const std::vector<Candidate> whole = candidates(allowed, sampling, seen);
  const ListingWish wish =
      listing_wish(sampling, draw, !forbidden.empty(), std::ssize(logits), lister.most());
  const ListedRow row = lister.list(logits, wish);
  const auto kept = candidates(row, sampling, seen, forbidden);
  if (kept) {
    EXPECT_EQ(kept->size(), whole.size());
    for (std::size_t i = 0; i < std::min(kept->size(), whole.size()); ++i) {
      EXPECT_EQ((*kept)[i].id, whole[i].id);
      EXPECT_EQ((*kept)[i].probability, whole[i].probability) << "to the last bit";
    }
  }
  const auto token = choose(row, sampling, draw, seen, forbidden);
  if (token) {
    EXPECT_EQ(*token, choose(allowed, sampling, draw, seen));
  }
  EXPECT_TRUE(token || !kept);
  return token.has_value();
}

struct Tally {
  int rows = 0, sufficed = 0, hopeless = 0, hopeless_sufficed = 0;
};

Tally tally(std::int64_t most, std::size_t vocabulary) {
  Lister lister(most);
  Tally all;
  std::uint32_t seed = 0;
  for (const double temperature : {0.0, 0.3, 0.7, 1.0, 2.0}) {
    for (const std::int64_t top_k : {0, 1, 5, 20, 600}) {
      for (const double top_p : {1.0, 0.9, 0.5, 0.99}) {
        for (const double min_p : {0.0, 0.05, 0.5}) {
          for (const double penalty : {1.0, 1.05, 1.3, 0.9}) {
            for (const bool forbids : {false, true}) {
              ++seed;
              const std::vector<float> logits =
                  logits_of(vocabulary, seed, seed % 3 == 0 ? 1 : 6, seed % 4 == 0);
              const Sampling sampling{.temperature = temperature,
                                      .top_p = top_p,
                                      .top_k = top_k,
                                      .min_p = min_p,
                                      .repetition_penalty = penalty,
                                      .seed = seed};
              const Tokens seen = seen_of(logits, seed);
              const Tokens forbidden = forbids ? Tokens{3, seen.back(), 11} : Tokens{};
              for (std::uint64_t position = 1; position < 4; ++position) {
                const Draw draw{.row = seed, .sample = 1, .position = position};
                const bool helps = listing_wish(sampling, draw, forbids, std::ssize(logits), most).helps;
                const bool sufficed = expect_as_whole(lister, logits, sampling, draw, seen, forbidden);
                ++(helps ? all.rows : all.hopeless);
                (helps ? all.sufficed : all.hopeless_sufficed) += sufficed ? 1 : 0;
                if (testing::Test::HasFailure()) return all;
              }
            }
          }
        }
      }
    }
  }
  return all;
}

TEST(ListedChoice, IsThatOfTheWholeRowForAllSettings) {
  const Tally all = tally(512, 1500);
  EXPECT_GT(all.rows, 3500);
  EXPECT_GT(all.sufficed, all.rows * 95 / 100);
  EXPECT_GT(all.hopeless, 1500);
  EXPECT_EQ(all.hopeless_sufficed, 0) << "a listing that helps is not asked for";
}

TEST(ListedChoice, IsThatOfTheWholeRowWhereLittleIsListed) {
  const Tally all = tally(6, 400);
  EXPECT_GT(all.sufficed, 1000);
  EXPECT_LT(all.sufficed, all.rows - 300) << "where it does not suffice, that is seen";
}

TEST(ListedChoice, OfASmallVocabularyEverythingIsListed) {
  const Tally all = tally(512, 60);
  EXPECT_EQ(all.sufficed, all.rows);
}

TEST(ListedChoice, SufficesForWhatModelsAskFor) {
  Lister lister(512);
  const std::vector<Sampling> typical{
      {.temperature = 0.7, .top_p = 0.8, .top_k = 20, .repetition_penalty = 1.05},
      {.temperature = 0.6, .top_p = 0.95, .top_k = 20},
      {.temperature = 0.6, .top_p = 0.9},
      {.temperature = 0.7, .top_p = 0.8},
      {.temperature = 1.0, .top_k = 50},
      {.temperature = 1.0, .top_p = 0.95, .top_k = 64},
      {.temperature = 1.0},
      {.temperature = 1.0, .min_p = 0.05},
      {.temperature = 1.5, .min_p = 0.1, .repetition_penalty = 1.1},
      {.repetition_penalty = 1.1}};
  int rows = 0, sufficed = 0;
  for (std::uint32_t seed = 0; seed < 30; ++seed) {
    const std::vector<float> logits = logits_of(32'000, seed, 8, false);
    const Tokens seen = seen_of(logits, seed);
    for (const Sampling& sampling : typical) {
      for (const bool forbids : {false, true}) {
        const Tokens forbidden = forbids ? Tokens{seen.back()} : Tokens{};
        const Draw draw{.row = seed, .position = 9};
        if (!listing_wish(sampling, draw, forbids, 32'000, 512).helps) continue;
        ++rows;
        sufficed += expect_as_whole(lister, logits, sampling, draw, seen, forbidden) ? 1 : 0;
      }
    }
  }
  EXPECT_EQ(rows, 30 * (10 + 7));
  EXPECT_GE(sufficed, rows * 99 / 100);
}

TEST(ListedChoice, AThousandDrawsOfTheWholeVocabularyAreThoseOfTheWholeRow) {
  Lister lister(8);
  const std::vector<float> logits = logits_of(700, 5, 2, false);
  int unlisted = 0;
  for (std::uint64_t position = 0; position < 1000; ++position) {
    const Sampling sampling{.temperature = position % 2 == 0 ? 1.0 : 1.7, .seed = 3};
    const Draw draw{.row = 2, .position = position};
    const ListedRow row = lister.list(logits, listing_wish(sampling, draw, false, 700, 8));
    const auto token = choose(row, sampling, draw);
    ASSERT_TRUE(token);
    ASSERT_EQ(*token, choose(logits, sampling, draw)) << position;
    unlisted += std::ranges::find(row.listed, *token, &ops::ListedLogit::id) == row.listed.end() ? 1 : 0;
  }
  EXPECT_GT(unlisted, 500);
}

/// A row of five logits, 4, 3, 2, 1, 0, of which the first `listed` are listed.
struct Five {
  explicit Five(std::size_t listed) : row{.listed = {kFive, listed}, .vocabulary = 5} {
    row.row = {.highest = 4,
               .bound = listed < 5 ? kFive[listed].logit : -kInf,
               .best = 0,
               .count = static_cast<std::int32_t>(listed)};
  }
  static constexpr ops::ListedLogit kFive[] = {{4, 0}, {3, 1}, {2, 2}, {1, 3}, {0, 4}};
  static std::vector<float> whole() { return {4, 3, 2, 1, 0}; }
  ListedRow row;
};

TEST(ListedChoice, ATokenThatAPenaltyPutsBehindTheUnlistedIsNotTaken) {
  const Tokens seen{1};
  // 3 becomes 1.5, below the unlisted 2.
  const Sampling two{.temperature = 1, .top_k = 2, .repetition_penalty = 2};
  EXPECT_FALSE(candidates(Five(2).row, two, seen));
  ASSERT_TRUE(candidates(Five(3).row, two, seen));
  EXPECT_EQ(candidates(Five(3).row, two, seen)->back().id, 2);
  // All listed tokens were seen: 4 becomes 1, and 3 becomes 0.75.
  const Sampling greedy{.repetition_penalty = 4};
  EXPECT_FALSE(choose(Five(2).row, greedy, {}, Tokens{0, 1}));
  EXPECT_EQ(choose(Five(3).row, greedy, {}, Tokens{0, 1}), 2);
  EXPECT_FALSE(choose(Five(1).row, {}, {}, {}, Tokens{0})) << "the only one that is listed is forbidden";
  EXPECT_EQ(choose(Five(2).row, {}, {}, {}, Tokens{0}), 1);
  // A penalized logit that equals an unlisted logit may have the higher id.
  EXPECT_FALSE(choose(Five(2).row, {.repetition_penalty = 2}, {}, Tokens{0, 1}));
}

TEST(ListedChoice, APenaltyBelowOneNeedsTheWholeRow) {
  const Sampling raises{.temperature = 1, .top_k = 1, .repetition_penalty = 0.5};
  EXPECT_FALSE(candidates(Five(4).row, raises, Tokens{4}));
  EXPECT_TRUE(candidates(Five(5).row, raises, Tokens{4}));
  EXPECT_FALSE(listing_wish(raises, {}, false, 5, 4).helps);
}

TEST(ListedChoice, ANucleusNeedsTheSumOfTheWholeRow) {
  const Sampling nucleus{.temperature = 1, .top_p = 0.8};
  Five two(2);
  EXPECT_FALSE(candidates(two.row, nucleus)) << "there is no sum";
  double sum = 0;
  for (const float x : Five::whole()) sum += std::exp(static_cast<double>(x) - 4);
  two.row.row.sum = sum;
  ASSERT_TRUE(candidates(two.row, nucleus));
  EXPECT_EQ(candidates(two.row, nucleus)->size(), 2u);
  EXPECT_FALSE(candidates(two.row, {.temperature = 1, .top_p = 0.9})) << "three are in it";
  EXPECT_FALSE(candidates(two.row, nucleus, {}, Tokens{4})) << "the sum is another one then";
  EXPECT_FALSE(candidates(two.row, {.temperature = 1, .top_p = 0.8, .repetition_penalty = 2}, Tokens{4}));
  // Tokens that min_p removes anyway need not be known.
  EXPECT_TRUE(candidates(two.row, {.temperature = 1, .top_p = 0.9, .min_p = 0.2}));
  EXPECT_FALSE(candidates(two.row, {.temperature = 1, .top_p = 0.9, .min_p = 0.1}));
}

TEST(ListedChoice, MinPHoldsTheUnlistedAgainstTheBest) {
  // The third has exp(-2) = 0.135 of the probability of the first.
  EXPECT_TRUE(candidates(Five(2).row, {.temperature = 1, .min_p = 0.14}));
  EXPECT_FALSE(candidates(Five(2).row, {.temperature = 1, .min_p = 0.13}));
  EXPECT_FALSE(candidates(Five(2).row, {.temperature = 2, .min_p = 0.14}));
  EXPECT_FALSE(candidates(Five(2).row, {.temperature = 1, .min_p = std::exp(-2.0)})) << "in doubt";
  // Without the first, the third has exp(-1) of the best.
  EXPECT_FALSE(candidates(Five(2).row, {.temperature = 1, .min_p = 0.3}, {}, Tokens{0}));
  EXPECT_TRUE(candidates(Five(2).row, {.temperature = 1, .min_p = 0.4}, {}, Tokens{0}));
}

TEST(ListedChoice, OfARowWithoutALargestNothingIsChosen) {
  for (const float highest : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    Five row(0);
    row.row.row.highest = highest;
    EXPECT_FALSE(choose(row.row, {}, {}));
    EXPECT_FALSE(choose(row.row, {.temperature = 1, .top_k = 1}, {}));
  }
  EXPECT_THROW(candidates(Five(5).row, {.temperature = 1}, {}, Tokens{0, 1, 2, 3, 4}), Error)
      << "as of the whole row";
}

TEST(ListedChoice, LogProbabilitiesHaveTheBitsOfTheWholeRow) {
  Lister lister(100);
  for (const bool rounded : {false, true}) {
    const std::vector<float> logits = logits_of(3000, 8, 5, rounded);
    const LogProbabilities whole(logits);
    const Sampling sampling{.temperature = 8, .seed = 4};
    int unlisted = 0;
    for (std::uint64_t position = 0; position < 20; ++position) {
      const Draw draw{.position = position};
      const ListedRow row = lister.list(logits, listing_wish(sampling, draw, false, 3000, 100), true);
      const std::int32_t token = choose(row, sampling, draw).value();
      EXPECT_EQ(log_probability(row, token), whole.of(token));
      unlisted += std::ranges::find(row.listed, token, &ops::ListedLogit::id) == row.listed.end() ? 1 : 0;
      const auto count = std::ssize(row.listed);
      ASSERT_GT(count, 10);
      for (const std::int64_t wanted : {std::ptrdiff_t{0}, std::ptrdiff_t{1}, std::ptrdiff_t{5}, count}) {
        const auto best = most_probable_tokens(row, wanted);
        const std::vector<TokenScore> expected = whole.best(wanted);
        ASSERT_TRUE(best);
        ASSERT_EQ(best->size(), expected.size());
        for (std::size_t i = 0; i < expected.size(); ++i) {
          EXPECT_EQ((*best)[i].id, expected[i].id);
          EXPECT_EQ((*best)[i].logprob, expected[i].logprob);
          EXPECT_EQ(log_probability(row, expected[i].id), expected[i].logprob);
        }
      }
      EXPECT_FALSE(most_probable_tokens(row, count + 1));
    }
    EXPECT_GT(unlisted, 5);
  }
  EXPECT_EQ(most_probable_tokens(Five(5).row, 9).value().size(), 5u);
  EXPECT_FALSE(log_probability(Five(2).row, 3));
}

TEST(ListedChoice, IsAskedForWhereItCanSuffice) {
  const auto wish = [](const Sampling& s, bool forbids = false) {
    return listing_wish(s, {.row = 1, .position = 2}, forbids, 1000, 100);
  };
  EXPECT_TRUE(wish({}, true).helps);
  EXPECT_TRUE(wish({.repetition_penalty = 1.3}).helps);
  EXPECT_FALSE(wish({.repetition_penalty = 0.99}).helps);
  EXPECT_TRUE(wish({.temperature = 1, .top_k = 100}, true).helps);
  EXPECT_FALSE(wish({.temperature = 1, .top_k = 101}).helps);
  EXPECT_TRUE(wish({.temperature = 1, .top_k = 1000}).helps) << "which is no limit";
  EXPECT_FALSE(wish({.temperature = 1}, true).helps);
  EXPECT_FALSE(wish({.temperature = 1, .top_p = 0.9, .repetition_penalty = 1.1}).helps);
  EXPECT_FALSE(wish({.temperature = 1, .top_p = 0.9, .min_p = 0.1}, true).helps);
  EXPECT_TRUE(wish({.temperature = 1, .min_p = 0.1}, true).helps);
  // Sums and draws take time, so they are only made if needed.
  EXPECT_EQ(wish({.temperature = 0.7, .top_p = 0.9}).temperature, 0.7);
  EXPECT_EQ(wish({.temperature = 0.7, .top_p = 0.9}).draw, -1);
  EXPECT_EQ(wish({.temperature = 0.7, .top_p = 0.9, .top_k = 5}).temperature, 0);
  EXPECT_EQ(wish({.temperature = 0.7, .min_p = 0.9}).temperature, 0);
  EXPECT_EQ(wish({.temperature = 0.7}).temperature, 0.7);
  const Sampling pure{.temperature = 0.7, .seed = 6};
  EXPECT_EQ(wish(pure).draw, random_number(pure, {.row = 1, .position = 2}));
}

}  // namespace
}  // namespace octet::generate::listed_choice_test
