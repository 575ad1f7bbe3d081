#include "octet/runtime/session.h"

#include <gtest/gtest.h>

namespace octet::runtime::session_test {
namespace {

// A problem that the ranks agreed on names its rank already, and a single rank needs no name.
TEST(Session, AProblemOfOneRankNamesRankHostAndGpu) {
  comm::Place place;
  place.rank = 1, place.size = 2, place.host = "node7";
  const Problem problem{.what = "work on the GPU failed", .where = "stream 'compute'"};
  EXPECT_EQ(placed(problem, place, "GPU 1: H200").where, "stream 'compute'; rank 1 on node7, GPU 1: H200");
  EXPECT_EQ(placed({.what = "it failed"}, place, "").where, "rank 1 on node7");
  Problem agreed = problem;
  agreed.agreed = true;
  EXPECT_EQ(placed(agreed, place, "GPU 1: H200").where, problem.where);
  EXPECT_EQ(placed({}, place, "GPU 1: H200").where, "") << "another rank speaks";
  place.size = 1;
  EXPECT_EQ(placed(problem, place, "GPU 1: H200").where, problem.where);
}

TEST(Session, OfALoneRankNeedsNoCarrierWhateverIsAskedFor) {
  Session session(DeviceWish::cpu, nullptr, comm::Carrier::nccl);
  EXPECT_EQ(session.data().carrier(), "");
  EXPECT_EQ(session.place().size, 1);
}

}  // namespace
}  // namespace octet::runtime::session_test
