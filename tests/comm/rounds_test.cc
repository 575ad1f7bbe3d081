// Small collectives of many ranks: results, and the messages, rounds and partners that they take.
#include "messages/rounds.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "comm/counted_ranks.h"
#include "messages/hierarchy.h"

namespace octet::comm::rounds_test {
namespace {

const std::vector<int> kSizes{1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 31, 33};

int log2_of(int size) {
  return std::bit_width(static_cast<unsigned>(size - 1));
}

/// Returns a string of a rank: of all lengths around the limit of a first message, or longer.
std::string text_of(int rank, int most) {
  return std::string(static_cast<std::size_t>(rank * 7 % (most + 1)), static_cast<char>('a' + rank % 26));
}

/// Gathers the strings of all ranks and compares them.
void expect_gathered(CountedRanks& ranks, int most) {
  const auto size = static_cast<std::size_t>(ranks.size());
  std::vector<std::vector<std::string>> all(size);
  ranks.run([&](int rank, Call& call) {
    return all_gather_bytes_steps(call, text_of(rank, most), &all[static_cast<std::size_t>(rank)]);
  });
  std::vector<std::string> expected;
  for (int rank = 0; rank < ranks.size(); ++rank) expected.push_back(text_of(rank, most));
  for (const auto& found : all) EXPECT_EQ(found, expected) << size << " ranks, up to " << most;
}

TEST(Rounds, BringTheValuesOfEveryRankOnce) {
  for (int size = 1; size <= 70; ++size) {
    int held = 0;
    for (const Round& round : rounds_of(size)) {
      EXPECT_EQ(round.held, held);
      held += round.count();
    }
    EXPECT_EQ(held, size - 1);
    EXPECT_EQ(static_cast<int>(rounds_of(size).size()), log2_of(size));
  }
}

TEST(Rounds, StringsOfEveryLengthArriveAtEveryRank) {
  for (const int size : kSizes) {
    for (const int most : {0, 8, 9, 3000}) {
      CountedRanks ranks(size);
      ranks.shuffle(static_cast<std::uint64_t>(size + most));
      expect_gathered(ranks, most);
      const int gathers = most > 8 && size > 2 ? 2 : 1;
      EXPECT_LE(ranks.most().rounds, gathers * (size > most_direct_ranks ? log2_of(size) : 1));
    }
  }
}

TEST(Rounds, StringsOfMoreThanTheLimitAreSentDirectly) {
  CountedRanks ranks(6);
  std::vector<std::vector<std::string>> all(6);
  const std::string text(std::size_t{4} << 20, 'x');
  ranks.run([&](int rank, Call& call) {
    return all_gather_bytes_steps(call, rank == 5 ? "" : text, &all[static_cast<std::size_t>(rank)]);
  });
  for (const auto& found : all) {
    EXPECT_EQ(found[0], text);
    EXPECT_EQ(found[5], "");
  }
  EXPECT_EQ(ranks.most().rounds, log2_of(6) + 1);
}

TEST(Rounds, ABroadcastReachesEveryRankFromEveryRank) {
  for (const int size : kSizes) {
    for (int root = 0; root<size; root += size> 9 ? 5 : 1) {
      for (const std::size_t length : {std::size_t{0}, std::size_t{8}, std::size_t{9}, std::size_t{5000}}) {
        CountedRanks ranks(size);
        ranks.shuffle(length + 1);
        std::vector<std::string> texts(static_cast<std::size_t>(size), "old");
        texts[static_cast<std::size_t>(root)] = std::string(length, 'n');
        ranks.run([&](int rank, Call& call) {
          return broadcast_steps(call, &texts[static_cast<std::size_t>(rank)], root);
        });
        for (const std::string& text : texts) EXPECT_EQ(text, std::string(length, 'n'));
        EXPECT_LE(ranks.most().rounds, log2_of(size) + (length > 8 ? 1 : 0));
        const int parts = length > 8 ? 2 : 1;
        EXPECT_LE(ranks.most().messages, parts * (size > most_direct_ranks ? log2_of(size) : size - 1));
      }
    }
  }
}

TEST(Rounds, ALongBroadcastIsForwardedInPieces) {
  CountedRanks ranks(6);
  std::vector<std::string> texts(6);
  texts[2] = std::string((std::size_t{2} << 24) + 7, 'n');
  texts[2][std::size_t{1} << 24] = 'm';
  ranks.run(
      [&](int rank, Call& call) { return broadcast_steps(call, &texts[static_cast<std::size_t>(rank)], 2); });
  for (const std::string& text : texts) EXPECT_TRUE(text == texts[2]);
}

/// Values of a rank: maxima, integers, and doubles with a sum that depends on the order.
struct Numbers {
  explicit Numbers(int rank) {
    for (int i = 0; i < 5; ++i) {
      const double x = std::sin(1.0 + rank * 7 + i) * std::pow(2.0, rank * 11 % 30);
      maxima.push_back(static_cast<float>(x));
      integers.push_back(static_cast<std::int64_t>(x * 1e9) + (std::int64_t{1} << 62));
      doubles.push_back(x);
      doubles.push_back(1 / x);
    }
    if (rank == 2) maxima[1] = std::numeric_limits<float>::quiet_NaN();
    maxima[2] = rank % 2 == 0 ? 0.0f : -0.0f;
  }
  std::vector<ReducedValues> values() {
    return {{ops::Combine::sum_i64, integers.data(), static_cast<std::int64_t>(integers.size())},
            {ops::Combine::sum_f64, doubles.data(), static_cast<std::int64_t>(doubles.size())},
            {ops::Combine::max_f32, maxima.data(), static_cast<std::int64_t>(maxima.size())}};
  }
  bool operator==(const Numbers& other) const {
    return integers == other.integers && doubles == other.doubles &&
           std::memcmp(maxima.data(), other.maxima.data(), maxima.size() * sizeof(float)) == 0;
  }
  std::vector<float> maxima;
  std::vector<std::int64_t> integers;
  std::vector<double> doubles;
};

/// Returns the values of all ranks, combined in rank order.
Numbers combined(int size) {
  Numbers all(0);
  for (int rank = 1; rank < size; ++rank) {
    Numbers next(rank);
    for (std::size_t i = 0; i < all.integers.size(); ++i) {
      all.integers[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(all.integers[i]) +
                                                  static_cast<std::uint64_t>(next.integers[i]));
    }
    for (std::size_t i = 0; i < all.doubles.size(); ++i) all.doubles[i] += next.doubles[i];
    for (std::size_t i = 0; i < all.maxima.size(); ++i) {
      if (std::isnan(next.maxima[i]) || next.maxima[i] > all.maxima[i]) all.maxima[i] = next.maxima[i];
    }
  }
  return all;
}

std::vector<Numbers> reduced(CountedRanks& ranks) {
  std::vector<Numbers> numbers;
  for (int rank = 0; rank < ranks.size(); ++rank) numbers.emplace_back(rank);
  const Hierarchy hierarchy(ranks.transport(0).place());
  ranks.run([&](int rank, Call& call) {
    return all_reduce_steps(call, {}, hierarchy, numbers[static_cast<std::size_t>(rank)].values());
  });
  return numbers;
}

TEST(Rounds, SumsOfDoublesAreInRankOrderAndIndependentOfTiming) {
  for (const int size : {5, 6, 7, 8, 9, 16, 31, 64}) {
    const Numbers expected = combined(size);
    for (const std::uint64_t seed : {0, 1, 2}) {
      CountedRanks ranks(size, size > 16 ? 4 : 0);
      ranks.shuffle(seed);
      for (const Numbers& found : reduced(ranks))
        EXPECT_TRUE(found == expected) << size << " ranks, " << seed;
      EXPECT_EQ(ranks.most().rounds, log2_of(size));
      EXPECT_EQ(ranks.most().messages, log2_of(size));
    }
  }
}

TEST(Rounds, SlicesAreGatheredInPlace) {
  for (const int size : {17, 24, 31}) {
    CountedRanks ranks(size, 4);
    std::vector<std::vector<int>> buffers(static_cast<std::size_t>(size),
                                          std::vector<int>(3 * static_cast<std::size_t>(size), -1));
    const Hierarchy hierarchy(ranks.transport(0).place());
    ranks.run([&](int rank, Call& call) {
      auto& buffer = buffers[static_cast<std::size_t>(rank)];
      for (int i = 3 * rank; i < 3 * rank + 3; ++i) buffer[static_cast<std::size_t>(i)] = i;
      return all_gather_steps(call, hierarchy, {.buffer = buffer.data(), .bytes = 3 * sizeof(int)});
    });
    for (const auto& buffer : buffers) {
      for (std::size_t i = 0; i < buffer.size(); ++i) EXPECT_EQ(buffer[i], static_cast<int>(i));
    }
    EXPECT_EQ(ranks.most().rounds, log2_of(size));
  }
}

TEST(Rounds, FastRanksMayBeSeveralCollectivesAhead) {
  for (const std::uint64_t seed : {1, 2, 3, 4}) {
    CountedRanks ranks(11);
    ranks.shuffle(seed);
    std::vector<std::vector<std::string>> all(11);
    std::vector<std::string> told(11);
    std::vector<CountedRanks::Start> starts;
    for (int i = 0; i < 12; ++i) {
      starts.push_back([&, i](int rank, Call& call) {
        if (i % 2 == 0) {
          told[static_cast<std::size_t>(rank)] = std::to_string(i);
          return broadcast_steps(call, &told[static_cast<std::size_t>(rank)], i % 11);
        }
        EXPECT_EQ(told[static_cast<std::size_t>(rank)], std::to_string(i - 1));
        return all_gather_bytes_steps(call, text_of(rank, i), &all[static_cast<std::size_t>(rank)]);
      });
    }
    ranks.run_all(starts);
    for (const auto& found : all) {
      for (int rank = 0; rank < 11; ++rank)
        EXPECT_EQ(found[static_cast<std::size_t>(rank)], text_of(rank, 11));
    }
  }
}

// The limits of a job of a given size. The bytes of an agreement are the bytes of all ranks' numbers.
TEST(ManyRanks, SmallCollectivesTakeFewMessagesAndPartners) {
  for (const int size : {64, 256, 1024}) {
    const int rounds = log2_of(size);
    CountedRanks ranks(size, 8);
    const auto expect = [&](const char* what, std::int64_t messages, std::int64_t bytes, int most_rounds) {
      const MessageCounts most = ranks.most();
      EXPECT_LE(most.messages, messages) << what << " of " << size;
      EXPECT_LE(most.bytes, bytes) << what << " of " << size;
      EXPECT_LE(most.rounds, most_rounds) << what << " of " << size;
      EXPECT_LE(static_cast<int>(most.peers.size()), 2 * rounds) << what << " of " << size;
      ranks.reset_counts();
    };
    expect_gathered(ranks, 8);  // numbers, as in `together` and in a barrier
    expect("agreement", 2 * rounds, 16 * size, rounds);
    expect_gathered(ranks, 40);
    expect("strings", 4 * rounds, 16 * size + 40 * size, 2 * rounds);
    std::vector<std::string> told(static_cast<std::size_t>(size), "12345678");
    ranks.run([&](int rank, Call& call) {
      return broadcast_steps(call, &told[static_cast<std::size_t>(rank)], 5);
    });
    expect("broadcast", rounds, 16 * rounds, rounds);
    const Numbers expected = combined(size);
    for (const Numbers& found : reduced(ranks)) EXPECT_TRUE(found == expected) << size;
    expect("norm", rounds, rounds * 5 * 12 + 80 * size, rounds);
  }
}

}  // namespace
}  // namespace octet::comm::rounds_test
