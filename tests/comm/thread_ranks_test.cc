// Collectives among ranks that are threads.
#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include "comm/claims.h"
#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"

namespace octet::comm::thread_ranks_test {
namespace {

class ThreadRanks : public testing::TestWithParam<int> {
 protected:
  void on_all(const std::function<void(Job&, Collectives&, Device&)>& claim, bool compute_worker = false) {
    run_ranks_as_threads({.ranks = GetParam(), .compute_worker = compute_worker}, claim);
  }
};

TEST_P(ThreadRanks, ReduceScatterSumsInRankOrder) {
  on_all([](Job&, Collectives& c, Device&) { expect_sums_in_rank_order(c); });
  on_all([](Job&, Collectives& c, Device&) { expect_sums_in_a_given_order(c); });
  on_all([](Job&, Collectives& c, Device&) { expect_sums_of_several_addends(c); });
}
TEST_P(ThreadRanks, DirectSumsAreInRankOrder) {
  for (const bool worker : {false, true}) {
    run_ranks_as_threads({.ranks = GetParam(), .compute_worker = worker, .carrier = Carrier::peer},
                         [](Job&, Collectives& c, Device& d) { expect_direct_sums(c, d, c.size() > 1); });
  }
}
TEST_P(ThreadRanks, AllGatherBringsEverySlice) {
  on_all([](Job&, Collectives& c, Device&) { expect_all_gather(c); });
}
TEST_P(ThreadRanks, LongMessagesTravelInPieces) {
  on_all([](Job&, Collectives& c, Device&) { expect_long_messages_to_arrive(c); });
}
TEST_P(ThreadRanks, AllReduceGivesMaximaAndSums) {
  on_all([](Job&, Collectives& c, Device&) { expect_all_reduce(c); });
}
TEST_P(ThreadRanks, QueuesDoNotBlockEachOther) {
  on_all([](Job&, Collectives& c, Device&) { expect_queues_to_be_independent(c); });
}
TEST_P(ThreadRanks, EventsOrderCollectivesAndCompute) {
  on_all([](Job&, Collectives& c, Device& d) { expect_events_to_order_collectives(c, d); });
  on_all([](Job&, Collectives& c, Device& d) { expect_events_to_order_collectives(c, d); }, true);
}
TEST_P(ThreadRanks, ControlPlaneCarriesBytes) {
  on_all([](Job&, Collectives& c, Device&) { expect_control_plane(c.channel()); });
}
TEST_P(ThreadRanks, NarrowWiresStayWithinTheirBounds) {
  on_all([](Job&, Collectives& c, Device&) { expect_wires_to_be_close(c); });
}
TEST_P(ThreadRanks, BlockWiresAreExact) {
  on_all([](Job&, Collectives& c, Device&) { expect_block_wires_to_be_exact(c); });
}
TEST_P(ThreadRanks, NarrowSumsDoNotDependOnTheOwner) {
  on_all([](Job&, Collectives& c, Device&) { expect_narrow_sums_not_to_depend_on_the_owner(c); });
}
TEST_P(ThreadRanks, NarrowWiresShowWhatIsNotFinite) {
  on_all([](Job&, Collectives& c, Device&) { expect_narrow_wires_to_show_what_is_not_finite(c); });
}
TEST_P(ThreadRanks, ErrorsAreAgreedUpon) {
  on_all([](Job&, Collectives& c, Device&) { expect_errors_to_be_agreed_upon(c.channel()); });
}
TEST_P(ThreadRanks, TrafficIsCounted) {
  on_all([](Job&, Collectives& c, Device&) { expect_traffic_to_be_counted(c); });
}

TEST_P(ThreadRanks, NarrowGathersLeaveTheSameBitsEverywhere) {
  on_all([](Job&, Collectives& c, Device&) { expect_narrow_gathers_to_agree(c); });
}

TEST_P(ThreadRanks, ReductionsOfBf16AgreeWithThoseOfFp32) {
  on_all([](Job&, Collectives& c, Device&) { expect_reductions_of_bf16_to_agree(c); });
}

TEST_P(ThreadRanks, GathersOfBf16AgreeWithThoseOfFp32) {
  on_all([](Job&, Collectives& c, Device&) { expect_gathers_of_bf16_to_agree(c); });
  on_all([](Job&, Collectives& c, Device&) { expect_gathers_to_keep_what_they_lose(c); });
}

std::string ranks_name(const testing::TestParamInfo<int>& test) {
  return "np" + std::to_string(test.param);
}
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadRanks, testing::Values(1, 2, 3, 4), ranks_name);
INSTANTIATE_TEST_SUITE_P(Whole, ThreadRanks, testing::Values(5, 8, 16), ranks_name);

TEST(DirectSums, AreThereAmongPeersOfOneNodeUnlessTheyAreTurnedOff) {
  const auto expect = [](const ThreadRanksOptions& options, bool has_them) {
    run_ranks_as_threads(options,
                         [&](Job&, Collectives& c, Device& d) { expect_direct_sums(c, d, has_them); });
  };
  expect({.ranks = 4, .carrier = Carrier::peer}, true);
  expect({.ranks = 4, .node_of = {0, 0, 1, 1}, .carrier = Carrier::peer}, false);
  expect({.ranks = 2, .carrier = Carrier::host}, false);
  expect({.ranks = 2, .carrier = Carrier::messages}, false);
  ::setenv("OCTETRUN_DIRECT_SUMS", "on", 1);
  expect({.ranks = 2, .carrier = Carrier::peer}, true);
  ::setenv("OCTETRUN_DIRECT_SUMS", "off", 1);
  expect({.ranks = 2, .carrier = Carrier::peer}, false);
  ::setenv("OCTETRUN_DIRECT_SUMS", "maybe", 1);
  EXPECT_THROW(expect({.ranks = 2, .carrier = Carrier::peer}, false), Error);
  ::unsetenv("OCTETRUN_DIRECT_SUMS");
}

TEST(ManyThreadRanks, SixtyFourRanksReduceAndGather) {
  run_ranks_as_threads({.ranks = 64}, [](Job&, Collectives& c, Device&) {
    expect_reduce_scatter(c, 2000, Target::own_slice, 5);
    EXPECT_EQ(c.channel().all_sum(c.rank()), 64 * 63 / 2);
  });
}

TEST(NodesOfThreadRanks, ReductionsOfBf16AgreeWithThoseOfFp32) {
  run_ranks_as_threads({.ranks = 5, .node_of = {0, 0, 1, 1, 1}},
                       [](Job&, Collectives& c, Device&) { expect_reductions_of_bf16_to_agree(c); });
}

TEST(NodesOfThreadRanks, MaximaAndSumsAreThoseOfOneNode) {
  for (const std::vector<int>& node_of :
       {std::vector<int>{0, 0, 1, 1, 1}, {0, 1, 0}, {0, 1, 2, 0, 1, 2, 0}}) {
    run_ranks_as_threads({.ranks = static_cast<int>(node_of.size()), .node_of = node_of},
                         [](Job&, Collectives& c, Device&) { expect_all_reduce(c); });
  }
}

TEST(NodesOfThreadRanks, SumsCrossOncePerNode) {
  run_ranks_as_threads({.ranks = 6, .node_of = {0, 0, 0, 1, 1, 1}}, [](Job&, Collectives& c, Device&) {
    Values<std::int64_t> integers(10, 1);
    Values<double> doubles(2, 1.0);
    c.all_reduce_sums(c.reduce_stream(), "few", integers.data(), 10, doubles.data(), 2);
    c.reduce_stream().synchronize();
    EXPECT_EQ(integers[9], 6);
    EXPECT_EQ(doubles[1], 6.0);
    std::int64_t calls = 0;
    for (const Traffic& t : c.take_traffic()) {
      if (t.kind != "all_reduce_sum") continue;
      calls = t.calls;
      EXPECT_EQ(t.bytes_between_nodes, 12 * 8);
    }
    EXPECT_EQ(calls, 1) << "both in one";
  });
}

TEST(ThreadRankFailure, AnExceptionOfOneRankEndsAllAndIsTheOneThatComesOut) {
  // The buffers must outlive the ranks, because messages of other ranks may still arrive in them.
  std::vector<Values<float>> buffers(4, Values<float>(4000, 1.0f));
  const auto run = [&] {
    run_ranks_as_threads({.ranks = 4}, [&](Job&, Collectives& c, Device&) {
      auto& buffer = buffers[static_cast<std::size_t>(c.rank())];
      if (c.rank() == 2) throw std::out_of_range("rank 2 cannot go on");
      c.all_gather(c.gather_stream(), {.name = "never whole", .buffer = buffer.data(), .bytes = 4000});
      c.gather_stream().synchronize();
    });
  };
  EXPECT_THROW(run(), std::out_of_range);
}

TEST(ThreadRankFailure, ABarrierWithoutOneRankEndsWhenThatRankFails) {
  const auto run = [] {
    run_ranks_as_threads({.ranks = 5}, [](Job&, Collectives& c, Device&) {
      if (c.rank() == 4) throw Error(Problem{.what = "no more", .code = ExitCode::usage});
      c.channel().barrier();
    });
  };
  try {
    run();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.problem().what, "no more");
    EXPECT_EQ(error.code(), ExitCode::usage);
  }
}

TEST(ThreadRankFailure, AbortEndsAllRanksWithItsCode) {
  try {
    run_ranks_as_threads({.ranks = 3}, [](Job& job, Collectives& c, Device&) {
      if (c.rank() == 1) job.abort(76);
      c.channel().barrier();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::preempted);
    EXPECT_NE(std::string(error.what()).find("76"), std::string::npos);
  }
}

TEST(ThreadRankFailure, RanksThatDisagreeAboutTheNextCollectiveAreTold) {
  std::vector<Values<float>> buffers(2, Values<float>(64, 1.0f));
  try {
    run_ranks_as_threads({.ranks = 2}, [&](Job&, Collectives& c, Device&) {
      float* buffer = buffers[static_cast<std::size_t>(c.rank())].data();
      Stream& stream = c.reduce_stream();
      if (c.rank() == 0) {
        c.all_reduce_max(stream, "amax", buffer, 32);
      } else {
        c.reduce_scatter(stream, {.name = "block 0", .from = buffer, .to = buffer + 32, .count = 32});
      }
      stream.synchronize();
    });
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("disagree about which collective"), std::string::npos);
  }
}

TEST(ThreadRankFailure, ADifferentSizeIsToldToo) {
  std::vector<Values<float>> buffers(2, Values<float>(64, 1.0f));
  const auto run = [&] {
    run_ranks_as_threads({.ranks = 2}, [&](Job&, Collectives& c, Device&) {
      c.all_gather(c.gather_stream(), {.buffer = buffers[static_cast<std::size_t>(c.rank())].data(),
                                       .bytes = c.rank() == 0 ? 32 : 16});
      c.gather_stream().synchronize();
    });
  };
  EXPECT_THROW(run(), Error);
}

TEST(ThreadRankFailure, OverlappingBuffersAreRefused) {
  Values<float> buffer(64);
  run_ranks_as_threads({.ranks = 1}, [&](Job&, Collectives& c, Device&) {
    EXPECT_THROW(
        c.reduce_scatter(c.reduce_stream(), {.from = buffer.data(), .to = buffer.data() + 1, .count = 8}),
        std::logic_error);
    EXPECT_THROW(c.all_gather(c.gather_stream(), {.buffer = buffer.data(), .bytes = -1}), std::logic_error);
  });
}

}  // namespace
}  // namespace octet::comm::thread_ranks_test
