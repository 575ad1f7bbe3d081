// Simulated failures inside a step: one message is printed, and no rank waits for the failed rank.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "comm/ranks.h"
#include "octet/base/error.h"
#include "octet/comm/thread_ranks.h"
#include "support/limited_memory.h"

namespace octet::comm::broken_step_test {
namespace {

/// Returns the error of three ranks if the last one fails in this way; empty if there is none.
Problem ended_by(const char* failure, Carrier carrier) {
  ::setenv("OCTETRUN_BREAK_STEP", failure, 1);
  Problem problem;
  try {
    run_ranks_as_threads({.ranks = 3, .carrier = carrier}, [](Job&, Collectives& c, Device&) {
      Values<float> values(3 * 64, 1.0f);
      for (int i = 0; i < 20; ++i) {
        c.reduce_scatter(c.reduce_stream(),
                         {.from = values.data(), .to = values.data() + c.rank() * 64, .count = 64});
      }
      c.reduce_stream().synchronize();
    });
  } catch (const Error& error) {
    problem = error.problem();
  }
  ::unsetenv("OCTETRUN_BREAK_STEP");
  return problem;
}

TEST(BrokenStep, EndsAllRanks) {
  for (const Carrier carrier : {Carrier::peer, Carrier::host}) {
    EXPECT_NE(ended_by("gpu:7", carrier).what.find("work of a stream fails"), std::string::npos);
    EXPECT_NE(ended_by("memory:7", carrier).what.find("memory"), std::string::npos);
    EXPECT_EQ(ended_by("gpu:100", carrier).what, "") << "there are not so many collectives";
    EXPECT_EQ(ended_by("nccl:7", carrier).what, "") << "which carries nothing here";
    EXPECT_EQ(ended_by("", carrier).what, "");
  }
}

#ifdef OCTET_TEST_LIMITED_MEMORY
TEST(RanksAsThreads, OneThatCannotStartEndsAll) {
  const test::LimitedMemory limit(std::size_t{100} << 20);
  EXPECT_THROW(
      run_ranks_as_threads({.ranks = 20},
                           [](Job&, Collectives& c, Device&) {
                             Values<float> values(20 * 64, 1.0f);
                             c.reduce_scatter(
                                 c.reduce_stream(),
                                 {.from = values.data(), .to = values.data() + c.rank() * 64, .count = 64});
                             c.reduce_stream().synchronize();
                           }),
      std::exception);
}
#endif

TEST(BrokenStep, RefusesWhatIsNoFailure) {
  for (const char* text : {"gpu", "gpu:", "gpu:0", "gpu:-1", "gpu:x", "disk:3", ":3", "memory:3x"}) {
    const Problem problem = ended_by(text, Carrier::peer);
    EXPECT_EQ(problem.what, "OCTETRUN_BREAK_STEP is not a valid failure") << text;
    EXPECT_NE(problem.found.find(text), std::string::npos) << text;
  }
}

}  // namespace
}  // namespace octet::comm::broken_step_test
