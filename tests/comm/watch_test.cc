// What a rank does when others do not come: names the collective and who is missing, and leaves its trace.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "comm/ranks.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/comm/communicator.h"
#include "support/program.h"

namespace octet::comm {
namespace {

TEST(Watch, ALostCollectiveIsNamedWithTheRanksThatDidNotCome) {
  const test::TemporaryFolder folder("watch");
  std::string message;
  try {
    run_ranks_as_threads({.ranks = 4}, [&](Communicator& c, Device&) {
      Values<float> values(4 * 256, 1.0f);
      c.watch({.timeout_seconds = 0.5, .trace_folder = c.rank() == 0 ? folder.path() : ""});
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
  for (const char* part : {"reduce_scatter 'block 3'", "nothing from ranks 1, 3", "rank 1 does not answer",
                           "1024 bytes", "queue reduce", "number 0"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  const Json trace = read_json(folder / "collectives-rank0.json");
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0]["name"], "fine");
  EXPECT_GE(trace[0]["done"].get<double>(), trace[0]["posted"].get<double>());
  EXPECT_EQ(trace[1]["kind"], "reduce_scatter");
  EXPECT_TRUE(trace[1]["done"].is_null());
  EXPECT_FALSE(trace[1]["begun"].is_null());
}

/// The message of the first rank that gives up.
std::string message_of(int ranks, const std::function<void(Communicator&, Values<float>&)>& body,
                       const std::vector<int>& node_of = {}) {
  // The buffers outlive the ranks, as other ranks' messages may still arrive in them.
  std::vector<Values<float>> buffers(static_cast<std::size_t>(ranks), Values<float>(4 * 256));
  try {
    run_ranks_as_threads({.ranks = ranks, .node_of = node_of}, [&](Communicator& c, Device&) {
      c.watch({.timeout_seconds = 0.5});
      body(c, buffers[static_cast<std::size_t>(c.rank())]);
    });
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::hang);
    return error.what();
  }
  ADD_FAILURE() << "nobody noticed";
  return "";
}

void reduce(Communicator& c, Values<float>& values) {
  c.reduce_scatter(c.reduce_stream(),
                   {.name = "X", .from = values.data(), .to = values.data() + c.rank() * 256, .count = 256});
  c.reduce_stream().synchronize();
}
void gather(Communicator& c, Values<float>& values) {
  c.all_gather(c.gather_stream(), {.name = "Y", .buffer = values.data(), .bytes = 1024});
  c.gather_stream().synchronize();
}

TEST(Watch, ByNodesTheRankThatDidNotComeIsNamedToo) {
  // Rank 3 is gone; ranks 0 and 1 wait for what rank 2 could hand on only with it.
  const auto reduce_by_node = [](Communicator& c, Values<float>& values) {
    if (c.rank() == 3) return;
    c.reduce_scatter(c.reduce_stream(), {.name = "X",
                                         .from = values.data(),
                                         .to = values.data() + c.rank() * 256,
                                         .count = 256,
                                         .wire = Wire::int8,
                                         .by_node = true});
    c.reduce_stream().synchronize();
  };
  const auto gather_by_node = [](Communicator& c, Values<float>& values) {
    if (c.rank() == 3) return;
    c.all_gather_values(
        c.gather_stream(),
        {.name = "Y", .buffer = values.data(), .count = 256, .wire = Wire::fp8, .by_node = true});
    c.gather_stream().synchronize();
  };
  const std::string sum = message_of(4, reduce_by_node, {0, 0, 1, 1});
  EXPECT_NE(sum.find("reduce_scatter 'X'"), std::string::npos) << sum;
  EXPECT_NE(sum.find("nothing from rank 3"), std::string::npos) << sum;
  const std::string gathered = message_of(4, gather_by_node, {0, 0, 1, 1});
  EXPECT_NE(gathered.find("all_gather_values 'Y'"), std::string::npos) << gathered;
  EXPECT_NE(gathered.find("nothing from rank 3"), std::string::npos) << gathered;
}

TEST(Watch, WhoWaitsForAMissingRankElsewhereIsNotNamed) {
  // Rank 2 is gone; rank 0 waits in X for it and for rank 1, which waits for rank 2 in Y.
  const std::string message = message_of(3, [](Communicator& c, Values<float>& values) {
    if (c.rank() == 0) reduce(c, values);
    if (c.rank() == 1) gather(c, values);
  });
  EXPECT_NE(message.find("nothing from rank 2 (rank 2 does not answer)"), std::string::npos) << message;
}

TEST(Watch, ARankThatIsAliveButDoesNotComeSaysSo) {
  const std::string message = message_of(3, [](Communicator& c, Values<float>& values) {
    reduce(c, values);
    if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(4));
    reduce(c, values);
  });
  EXPECT_NE(message.find("nothing from rank 1 (rank 1 answers: it waits in no collective)"),
            std::string::npos)
      << message;
  EXPECT_NE(message.find("queue reduce, number 1"), std::string::npos) << message;
}

TEST(Watch, RanksThatWaitForEachOtherAreNamedWithWhatTheyWaitIn) {
  const std::string message = message_of(2, [](Communicator& c, Values<float>& values) {
    if (c.rank() == 0) reduce(c, values);
    if (c.rank() == 1) gather(c, values);
  });
  EXPECT_NE(message.find("reduce_scatter 'X'"), std::string::npos) << message;
  EXPECT_NE(message.find("nothing from rank 1 (rank 1 answers: it waits in all_gather 'Y', queue gather, "
                         "number 0)"),
            std::string::npos)
      << message;
}

TEST(Watch, WhatIsSlowButMovesIsNotLost) {
  run_ranks_as_threads({.ranks = 2}, [&](Communicator& c, Device&) {
    c.watch({.timeout_seconds = 1.0});
    for (int i = 0; i < 3; ++i) {
      if (c.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(400));
      EXPECT_EQ(c.all_sum(1), 2);
    }
  });
}

TEST(Watch, TheTraceKeepsTheLatestCollectives) {
  run_ranks_as_threads({.ranks = 2}, [&](Communicator& c, Device&) {
    for (int i = 0; i < 1500; ++i) c.barrier();
    const Json trace = parse_json(c.trace(), "trace");
    ASSERT_EQ(trace.size(), 1024u);
    EXPECT_EQ(trace[0]["sequence"], 476);
    EXPECT_EQ(trace[1023]["sequence"], 1499);
    for (const Json& row : trace) EXPECT_FALSE(row["done"].is_null());
  });
}

}  // namespace
}  // namespace octet::comm
