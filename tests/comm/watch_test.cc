// What a rank does when others do not come: names the collective and who is missing, and leaves its trace.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

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
      std::vector<float> values(4 * 256, 1.0f);
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
  for (const char* part :
       {"reduce_scatter 'block 3'", "ranks 1, 3", "1024 bytes", "queue reduce", "number 0"}) {
    EXPECT_NE(message.find(part), std::string::npos) << part << " in\n" << message;
  }
  const std::string path = folder / "collectives-rank0.json";
  if (!std::filesystem::exists(path)) return;  // rank 2 was first
  const Json trace = read_json(path);
  ASSERT_EQ(trace.size(), 2u);
  EXPECT_EQ(trace[0]["name"], "fine");
  EXPECT_GE(trace[0]["done"].get<double>(), trace[0]["posted"].get<double>());
  EXPECT_EQ(trace[1]["kind"], "reduce_scatter");
  EXPECT_TRUE(trace[1]["done"].is_null());
  EXPECT_FALSE(trace[1]["begun"].is_null());
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
