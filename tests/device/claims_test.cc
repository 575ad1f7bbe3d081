#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>
#include <vector>

#include "octet/device/cpu.h"
#include "octet/device/device.h"
#include "support/limited_memory.h"

namespace octet::claims_test {
namespace {

/// Processes `count` pieces and returns how often each was processed.
std::vector<int> done(int count, int threads) {
  std::vector<std::atomic<int>> times(static_cast<std::size_t>(count));
  cpu::share(count, [&](int piece, int who) {
    EXPECT_GE(who, 0);
    EXPECT_LT(who, threads);
    ++times[static_cast<std::size_t>(piece)];
  });
  return {times.begin(), times.end()};
}

TEST(Claims, EveryPieceIsDoneOnceBeforeTheCallReturns) {
  for (const int threads : {1, 2, 3, 5}) {
    cpu::set_op_threads(threads);
    const int those = cpu::op_threads();
    for (int round = 0; round < 2000; ++round) {
      const int count = round % 37;
      ASSERT_EQ(done(count, those), std::vector<int>(static_cast<std::size_t>(count), 1));
    }
  }
}

TEST(Claims, HelpersThatSleepAreWoken) {
  cpu::set_op_threads(2);
  if (cpu::op_threads() < 2) GTEST_SKIP() << "one thread alone here";
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    std::atomic<int> there = 0;
    cpu::share(2, [&](int, int) {  // neither piece ends before the other has begun
      ++there;
      while (there < 2) std::this_thread::yield();
    });
    EXPECT_EQ(there, 2);
  }
}

// Free threads take the remaining pieces: one thread stays in its piece until the other thread has processed
// the other 19 pieces.
TEST(Claims, WhoIsFreeTakesWhatIsLeft) {
  cpu::set_op_threads(2);
  if (cpu::op_threads() < 2) GTEST_SKIP() << "one thread alone here";
  std::atomic<int> others = 0;
  std::atomic<int> stuck = -1;
  cpu::share(20, [&](int, int who) {
    int nobody = -1;
    if (stuck.compare_exchange_strong(nobody, who)) {
      while (others < 19) std::this_thread::yield();
    } else {
      EXPECT_NE(who, stuck);
      ++others;
    }
  });
  EXPECT_EQ(others, 19);
}

TEST(Claims, EachThreadHasHelpersOfItsOwn) {
  std::vector<std::thread> ranks;
  std::vector<std::int64_t> sums(3, 0);
  for (std::size_t rank = 0; rank < sums.size(); ++rank) {
    ranks.emplace_back([&sums, rank] {
      cpu::set_op_threads(2);
      for (int round = 0; round < 500; ++round) {
        std::atomic<std::int64_t> sum = 0;
        cpu::share(9, [&](int piece, int) { sum += piece; });
        sums[rank] += sum;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(sums, std::vector<std::int64_t>(3, 500 * 36));
}

#ifdef OCTET_TEST_LIMITED_MEMORY
TEST(Claims, PiecesAreDoneIfTheSystemStartsFewerHelpers) {
  std::thread([] {  // a new thread, because helpers belong to the calling thread
    cpu::set_op_threads(64);
    const test::LimitedMemory limit(std::size_t{80} << 20);  // nine stacks of 8 MiB
    for (const int count : {2, 100})
      EXPECT_EQ(done(count, 64), std::vector<int>(static_cast<std::size_t>(count), 1));
  })
      .join();
}
#endif

TEST(Claims, APieceMayShareItsOwnWork) {
  cpu::set_op_threads(2);
  std::atomic<int> all = 0;
  cpu::share(3, [&](int, int) { cpu::share(4, [&](int, int) { ++all; }); });
  EXPECT_EQ(all, 12);
}

// Two streams of one process may differ, independent of the thread that runs their work.
TEST(Claims, AreAPropertyOfTheStream) {
  const auto device = make_cpu_device({.threads = 2});
  for (const auto mode : {StreamOptions::Mode::in_line, StreamOptions::Mode::worker}) {
    const auto plain = device->make_stream({.name = "plain", .mode = mode});
    const auto claiming = device->make_stream({.name = "claiming", .mode = mode});
    claiming->set_claims(true);
    bool in_plain = true, in_claiming = false, in_plain_again = true;
    cpu::enqueue(*plain, [&] { in_plain = cpu::claims(); });
    cpu::enqueue(*claiming, [&] { in_claiming = cpu::claims(); });
    cpu::enqueue(*plain, [&] { in_plain_again = cpu::claims(); });
    plain->synchronize();
    claiming->synchronize();
    EXPECT_FALSE(in_plain);
    EXPECT_TRUE(in_claiming);
    EXPECT_FALSE(in_plain_again);
    EXPECT_FALSE(cpu::claims());
  }
}

}  // namespace
}  // namespace octet::claims_test
