// A rank that waits for others in vain names the collective and the missing ranks, and writes its trace.
// Tested for collectives over messages, and made of exchanges and kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "comm/ranks.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/comm/thread_ranks.h"
#include "support/program.h"

namespace octet::comm::watch_test {
namespace {

std::string name_of(Carrier carrier) {
  return carrier == Carrier::peer ? "peer" : carrier == Carrier::host ? "host" : "messages";
}

class Watch : public testing::TestWithParam<Carrier> {
 protected:
  /// Returns the message of the first rank that gives up.
  static std::string message_of(int ranks, const std::function<void(Collectives&, Values<float>&)>& body,
                                const std::vector<int>& node_of = {}) {
    // The buffers must outlive the ranks, because messages of other ranks may still arrive in them.
    std::vector<Values<float>> buffers(static_cast<std::size_t>(ranks), Values<float>(4 * 256));
    try {
      run_ranks_as_threads({.ranks = ranks, .node_of = node_of, .carrier = GetParam()},
                           [&](Job& job, Collectives& c, Device&) {
                             job.watch({.timeout_seconds = 0.5});
                             body(c, buffers[static_cast<std::size_t>(c.rank())]);
                           });
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::hang);
      return error.what();
    }
    ADD_FAILURE() << "nobody noticed";
    return "";
  }
  /// Returns the text about a rank that has returned. If ranks access each other's memory, it waits until no
  /// rank does.
  static std::string gone(int rank) {
    return "rank " + std::to_string(rank) +
           (GetParam() == Carrier::messages ? " does not answer" : " answers: it has ended its work");
  }
  /// Returns the rows of the trace without the control messages.
  static std::vector<Json> collectives_of(const Json& trace) {
    std::vector<Json> rows;
    std::ranges::copy_if(trace, std::back_inserter(rows),
                         [](const Json& row) { return row["kind"] != "control"; });
    return rows;
  }
};
INSTANTIATE_TEST_SUITE_P(Carriers, Watch, testing::Values(Carrier::messages, Carrier::peer, Carrier::host),
                         [](const auto& test) { return name_of(test.param); });

class WatchOfDevices : public Watch {};
INSTANTIATE_TEST_SUITE_P(Carriers, WatchOfDevices, testing::Values(Carrier::peer, Carrier::host),
                         [](const auto& test) { return name_of(test.param); });

TEST_P(Watch, ALostCollectiveIsNamedWithTheRanksThatDidNotCome) {
  const test::TemporaryFolder folder("watch");
  std::string message;
  std::vector<Values<float>> buffers(4, Values<float>(4 * 256, 1.0f));
  try {
    run_ranks_as_threads({.ranks = 4, .carrier = GetParam()}, [&](Job& job, Collectives& c, Device&) {
      Values<float>& values = buffers[static_cast<std::size_t>(c.rank())];
      job.watch({.timeout_seconds = 0.5, .trace_folder = c.rank() == 0 ? folder.path() : ""});
      c.all_gather(c.gather_stream(), {.name = "fine", .buffer = values.data(), .bytes = 1024});
      c.gather_stream().synchronize();
      if (c.rank() % 2 == 1) return;
      c.reduce_scatter(
          c.reduce_stream(),
          {.name = "block 3", .from = values.data(), .to = values.data() + c.rank() * 256, .count = 256});
      c.reduce_stream().synchronize();
    });
    FAIL() << "nobody noticed";
  } catch (const Error& error) {
    message = error.what();
    EXPECT_EQ(error.code(), ExitCode::hang);
  }
  for (const std::string& part :
       {std::string("reduce_scatter 'block 3'"), std::string("nothing from ranks 1, 3"), gone(1),
        std::string("1024 bytes, queue reduce, number 0")}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  const std::vector<Json> trace = collectives_of(read_json(folder / "collectives-rank0.json"));
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0]["name"], "fine");
  EXPECT_GE(trace[0]["done"].get<double>(), trace[0]["posted"].get<double>());
  EXPECT_EQ(trace[1]["kind"], "reduce_scatter");
  EXPECT_TRUE(trace[1]["done"].is_null());
  EXPECT_FALSE(trace[1]["begun"].is_null());
}

void reduce(Collectives& c, Values<float>& values) {
  c.reduce_scatter(c.reduce_stream(),
                   {.name = "X", .from = values.data(), .to = values.data() + c.rank() * 256, .count = 256});
  c.reduce_stream().synchronize();
}
void gather(Collectives& c, Values<float>& values) {
  c.all_gather(c.gather_stream(), {.name = "Y", .buffer = values.data(), .bytes = 1024});
  c.gather_stream().synchronize();
}

TEST_P(Watch, ByNodesTheRankThatDidNotComeIsNamedToo) {
  // Rank 3 is gone. Ranks 0 and 1 wait for a result of rank 2 that needs rank 3.
  const auto hierarchical_reduce = [](Collectives& c, Values<float>& values) {
    if (c.rank() == 3) return;
    c.reduce_scatter(c.reduce_stream(), {.name = "X",
                                         .from = values.data(),
                                         .to = values.data() + c.rank() * 256,
                                         .count = 256,
                                         .wire = Wire::int8,
                                         .hierarchical = true});
    c.reduce_stream().synchronize();
  };
  const auto hierarchical_gather = [](Collectives& c, Values<float>& values) {
    if (c.rank() == 3) return;
    c.all_gather_values(
        c.gather_stream(),
        {.name = "Y", .buffer = values.data(), .count = 256, .wire = Wire::fp8, .hierarchical = true});
    c.gather_stream().synchronize();
  };
  const std::string sum = message_of(4, hierarchical_reduce, {0, 0, 1, 1});
  EXPECT_NE(sum.find("reduce_scatter 'X'"), std::string::npos) << sum;
  EXPECT_NE(sum.find("nothing from rank 3"), std::string::npos) << sum;
  const std::string gathered = message_of(4, hierarchical_gather, {0, 0, 1, 1});
  EXPECT_NE(gathered.find("all_gather_values 'Y'"), std::string::npos) << gathered;
  EXPECT_NE(gathered.find("nothing from rank 3"), std::string::npos) << gathered;
}

TEST_P(Watch, WhoWaitsForAMissingRankElsewhereIsNotNamed) {
  // Rank 2 is gone. Rank 0 waits in X for ranks 1 and 2. Rank 1 waits in Y for rank 2.
  const std::string message = message_of(3, [](Collectives& c, Values<float>& values) {
    if (c.rank() == 0) reduce(c, values);
    if (c.rank() == 1) gather(c, values);
  });
  EXPECT_NE(message.find("nothing from rank 2 (" + gone(2) + ")"), std::string::npos) << message;
}

TEST(WatchInRounds, TheRankThatDidNotComeIsNamed) {
  for (const bool is_channel : {false, true}) {
    std::vector<Values<std::int64_t>> sums(8, Values<std::int64_t>(1, 1));
    try {
      run_ranks_as_threads({.ranks = 8}, [&](Job& job, Collectives& c, Device&) {
        job.watch({.timeout_seconds = 0.5});
        if (c.rank() == 5) return;
        if (is_channel) return c.channel().barrier();
        c.all_reduce_sum(c.reduce_stream(), "X", sums[static_cast<std::size_t>(c.rank())].data(), 1);
        c.reduce_stream().synchronize();
      });
      ADD_FAILURE() << "nobody noticed";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::hang);
      const std::string message = error.what();
      EXPECT_NE(message.find("nothing from rank 5 (rank 5 does not answer)"), std::string::npos) << message;
    }
  }
}

TEST_P(Watch, ARankThatIsAliveButDoesNotComeSaysSo) {
  const std::string message = message_of(3, [](Collectives& c, Values<float>& values) {
    reduce(c, values);
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
    reduce(c, values);
  });
  EXPECT_NE(message.find("nothing from rank 1 (rank 1 answers: it waits in no collective)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("queue reduce, number 1"), std::string::npos) << message;
}

TEST_P(Watch, RanksThatWaitForEachOtherAreNamedWithWhatTheyWaitIn) {
  const std::string message = message_of(2, [](Collectives& c, Values<float>& values) {
    if (c.rank() == 0) reduce(c, values);
    if (c.rank() == 1) gather(c, values);
  });
  EXPECT_NE(message.find("reduce_scatter 'X'"), std::string::npos) << message;
  EXPECT_NE(message.find("nothing from rank 1 (rank 1 answers: it waits in all_gather 'Y', queue gather, "
                         "number 0)"),
            std::string::npos)
      << message;
}

TEST_P(Watch, WhatIsSlowButMovesIsNotLost) {
  run_ranks_as_threads({.ranks = 2, .carrier = GetParam()}, [&](Job& job, Collectives& c, Device&) {
    job.watch({.timeout_seconds = 1.0});
    for (int i = 0; i < 3; ++i) {
      if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      EXPECT_EQ(c.channel().all_sum(1), 2);
    }
  });
}

TEST_P(Watch, TheTraceKeepsTheLatestCollectives) {
  run_ranks_as_threads({.ranks = 2, .carrier = GetParam()}, [&](Job& job, Collectives&, Device&) {
    for (int i = 0; i < 1500; ++i) job.barrier();
    const Json trace = parse_json(job.trace(), "trace");
    ASSERT_EQ(trace.size(), 1024u);
    // Before the barriers, the channel had one exchange: the request for lanes.
    EXPECT_EQ(trace[0]["sequence"], 1501 - 1024);
    EXPECT_EQ(trace[1023]["sequence"], 1500);
    for (const Json& row : trace) EXPECT_FALSE(row["done"].is_null());
  });
}

// A device that hangs shows only as a collective that does not end.
TEST_P(WatchOfDevices, ACollectiveToWhichAllCameAndThatDoesNotEndIsLost) {
  const std::string message = message_of(2, [](Collectives& c, Values<float>& values) {
    // Rank 1 sends nothing to rank 0, which waits for it. A message of another size would be an error at
    // once.
    c.all_gather(c.gather_stream(),
                 {.name = "Y", .buffer = values.data(), .bytes = c.rank() == 0 ? 1024 : 0});
    c.gather_stream().synchronize();
  });
  const std::string what =
      GetParam() == Carrier::peer ? "it does not finish on rank 0" : "messages are missing from rank 1";
  EXPECT_NE(message.find("all ranks take part, but " + what), std::string::npos) << message;
}

}  // namespace
}  // namespace octet::comm::watch_test
