#include "octet/runtime/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace octet::runtime::host_batch_test {
namespace {

TEST(HostBatch, LabelsAreShiftedInsideEachDocument) {
  HostBatch batch;
  const std::vector<std::int32_t> ids{1, 2, 3}, labels{-100, 2, 3}, other{7, 8}, other_labels{7, 8};
  add_document(batch, ids, labels);
  add_document(batch, other, other_labels);
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 3, 5}));
  EXPECT_EQ(batch.label_rows, (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{2, 3, 8}));
  EXPECT_EQ(batch.max_length, 3);
  batch.targets[1] = -1;
  EXPECT_EQ(batch.labels(), 2) << "targets below 0 do not count";
}

TEST(HostBatch, TokensHaveTheNameOfTheirSampleAndPositionWhateverTheBatch) {
  const std::vector<std::int32_t> a{1, 2, 3}, b{7, 8};
  HostBatch both, alone;
  add_document(both, a, a, 40);
  add_document(both, b, b, 41);
  add_document(alone, b, b, 41);
  ASSERT_EQ(both.names.size(), 5u);
  EXPECT_TRUE(std::equal(alone.names.begin(), alone.names.end(), both.names.begin() + 3));
  EXPECT_EQ(std::set<std::uint64_t>(both.names.begin(), both.names.end()).size(), 5u);
  // Documents without numbers are numbered by their position.
  HostBatch placed;
  add_document(placed, b, b);
  add_document(placed, b, b);
  EXPECT_NE(placed.names[0], placed.names[2]);
}

TEST(HostBatch, MixedNumbersDifferInBothOfTheirParts) {
  std::set<std::uint64_t> all;
  for (std::uint64_t i = 0; i < 100; ++i) {
    for (std::uint64_t j = 0; j < 100; ++j) all.insert(mixed(i, j));
  }
  EXPECT_EQ(all.size(), 10000u);
}

}  // namespace
}  // namespace octet::runtime::host_batch_test
