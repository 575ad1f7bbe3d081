#include "octet/runtime/host_batch.h"

#include <gtest/gtest.h>

namespace octet::runtime {
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

}  // namespace
}  // namespace octet::runtime
