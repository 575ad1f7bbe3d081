// Messages of the feed on its data.
#include "octet/feed/feed.h"

#include <gtest/gtest.h>

namespace octet::feed::feed_test {
namespace {

// Documents of 3, 5 and 2 tokens, the first two in one sequence.
TEST(MeanContext, CountsEveryTokenWithWhatItSees) {
  data::Encoded set;
  for (const std::size_t length : {3, 5, 2}) {
    const std::vector<std::int32_t> ids(length, 7);
    set.append(ids, ids, 0);
  }
  data::Items items;
  for (const std::int64_t d : {0, 1, 2}) items.documents.push_back(d);
  items.begins.push_back(2);
  items.begins.push_back(3);
  EXPECT_DOUBLE_EQ(mean_context(set, items), (3 * 3 + 5 * 5 + 2 * 2) / 10.0);
  items.shared_context = true;
  EXPECT_DOUBLE_EQ(mean_context(set, items), (8 * 8 + 2 * 2) / 10.0);
  EXPECT_EQ(mean_context(data::Encoded(), data::Items()), 0);
}

}  // namespace
}  // namespace octet::feed::feed_test
