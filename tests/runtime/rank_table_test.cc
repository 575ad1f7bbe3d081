#include "octet/runtime/rank_facts.h"

#include <gtest/gtest.h>

namespace octet::runtime::rank_table_test {
namespace {

const RankRow kRow{.rank = 0,
                   .host = "a",
                   .gpu = "0: NVIDIA H200",
                   .bus = "0000:3b:00.0",
                   .numa_node = 0,
                   .free_bytes = std::int64_t{139} << 30};

TEST(RankTable, AlignsItsColumns) {
  RankRow other = kRow;
  other.rank = 10, other.host = "node-17", other.numa_node = -1, other.bus.clear();
  const std::vector<std::string> lines = rank_table({kRow, other});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[0], "  rank  host     GPU             bus           NUMA  free");
  EXPECT_EQ(lines[1], "  0     a        0: NVIDIA H200  0000:3b:00.0  0     139.00 GiB");
  EXPECT_EQ(lines[2], "  10    node-17  0: NVIDIA H200  -             -     139.00 GiB");
}

TEST(RankTable, TakesFurtherColumns) {
  RankRow row = kRow;
  row.more = {"NVLink", "347 GB/s"};
  const std::vector<std::string> lines = rank_table({row}, {"carrier", "rate"});
  EXPECT_TRUE(lines[0].ends_with("  free        carrier  rate")) << lines[0];
  EXPECT_TRUE(lines[1].ends_with("  139.00 GiB  NVLink   347 GB/s")) << lines[1];
  EXPECT_THROW(rank_table({kRow}, {"carrier"}), std::logic_error);
}

TEST(RankTable, OfVeryManyRanksShowsTheFirst) {
  const std::vector<std::string> lines = rank_table(std::vector<RankRow>(1000, kRow));
  ASSERT_EQ(lines.size(), 66u);
  EXPECT_EQ(lines.back(), "  … and 936 more");
}

}  // namespace
}  // namespace octet::runtime::rank_table_test
