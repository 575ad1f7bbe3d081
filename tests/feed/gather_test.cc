#include "octet/feed/gather.h"
#include "octet/comm/thread_ranks.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace octet::feed::gather_test {
namespace {

// A part of some documents; rank 1 has none.
data::Encoded part_of(int rank) {
  data::Encoded part;
  for (std::int32_t d = 0; d < (rank == 1 ? 0 : 300 + rank); ++d) {
    std::vector<std::int32_t> ids, labels;
    for (std::int32_t t = 0; t < 1 + d % 7; ++t) {
      ids.push_back(rank * 100000 + d * 10 + t);
      labels.push_back(t % 2 ? ids.back() : -100);
    }
    part.append(ids, labels, rank * 1000 + d);
  }
  part.counts.rows = 400;
  part.counts.reasons = {"file:" + std::to_string(rank) + ": no\nanswer"};
  return part;
}

// In memory, and in a file that the ranks of a node share; in one message, and in many, the last of them cut
// short.
TEST(GatherParts, GivesEveryRankTheWholeInRankOrder) {
  data::Encoded expected;
  for (int rank = 0; rank < 3; ++rank) expected.append(part_of(rank));
  for (const auto& [in_memory, message_bytes] : std::initializer_list<std::pair<std::size_t, std::int64_t>>{
           {1 << 20, 1 << 20}, {256, 1 << 20}, {1 << 20, 1000}, {256, 400}}) {
    SCOPED_TRACE(message_bytes);
    const GatherLimits limits{.in_memory = in_memory, .message_bytes = message_bytes};
    comm::run_ranks_as_threads({.ranks = 3}, [&, in_memory = in_memory](comm::Job& job, Device&) {
      const data::Encoded whole = gather_parts(job, part_of(job.rank()), limits);
      EXPECT_EQ(whole.fingerprint(), expected.fingerprint());
      EXPECT_EQ(whole.rows, expected.rows);
      EXPECT_EQ(whole.counts.rows, 1200);
      EXPECT_EQ(whole.counts.reasons, expected.counts.reasons);
      const bool leads = job.place().local_rank == 0;
      EXPECT_EQ(is_shared_file(whole.ids.address()), leads && in_memory == 256)
          << "one file for the ranks of a node, made by the lowest";
    });
  }
}

TEST(GatherParts, ARankAloneKeepsWhatItHas) {
  comm::run_ranks_as_threads({.ranks = 1}, [](comm::Job& job, Device&) {
    EXPECT_EQ(gather_parts(job, part_of(0)).fingerprint(), part_of(0).fingerprint());
  });
}

}  // namespace
}  // namespace octet::feed::gather_test
