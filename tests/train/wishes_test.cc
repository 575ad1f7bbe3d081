// Requests of the ranks between two steps.
#include "../src/train/train_steps.h"

#include <gtest/gtest.h>

#include "octet/comm/thread_ranks.h"

namespace octet::train::wishes_test {
namespace {

TEST(Wishes, OfOneRankCountForAll) {
  comm::run_ranks_as_threads({.ranks = 2}, [](comm::Job& job, Device&) {
    const bool first = job.rank() == 0;
    const Wishes none = wishes_of_all(job, {});
    EXPECT_FALSE(none.save || none.stop || none.settle || none.data);
    const Wishes two = wishes_of_all(job, {.save = first, .settle = !first});
    EXPECT_TRUE(two.save && two.settle);
    EXPECT_FALSE(two.stop || two.data);
    const Wishes others = wishes_of_all(job, {.stop = !first, .data = first});
    EXPECT_TRUE(others.stop && others.data);
    EXPECT_FALSE(others.save || others.settle);
  });
}

}  // namespace
}  // namespace octet::train::wishes_test
