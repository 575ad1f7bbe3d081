#include "octet/feed/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "octet/feed/loader.h"

namespace octet::feed {
namespace {

data::Encoded random_set(std::int64_t documents, std::int64_t longest) {
  data::Encoded set;
  for (std::int64_t d = 0; d < documents; ++d) {
    std::vector<std::int32_t> ids, labels;
    for (std::int64_t t = 0; t < 1 + d * 7919 % longest; ++t) {
      ids.push_back(static_cast<std::int32_t>(d * 100 + t));
      labels.push_back(t % 3 == 2 ? ids.back() : -100);
    }
    set.append(ids, labels, d);
  }
  return set;
}

TEST(SampleOrder, VisitsEveryItemOnceAnEpochInANewOrder) {
  const SampleOrder order{.items = 103, .global_batch = 8, .seed = 5};
  ASSERT_EQ(order.steps_per_epoch(), 13);
  std::vector<std::vector<std::int64_t>> epochs;
  for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<std::int64_t> seen;
    for (std::int64_t step = 0; step < 13; ++step) {
      for (std::int64_t place = 0; place < 8; ++place) {
        const auto item = order.item(epoch * 13 + step, place);
        if (item >= 0) seen.push_back(item);
      }
    }
    epochs.push_back(seen);
    std::ranges::sort(seen);
    ASSERT_EQ(seen.size(), 103u);
    for (std::int64_t i = 0; i < 103; ++i) EXPECT_EQ(seen[static_cast<std::size_t>(i)], i);
  }
  EXPECT_NE(epochs[0], epochs[1]);
  EXPECT_NE(epochs[1], epochs[2]);
}

// Hugging Face's Trainer: 17 micro-batches of 4 and a step of the one behind the sixteenth.
TEST(SampleOrder, WhatFillsNoGroupIsLeftOutAndAPartialStepIsNot) {
  const SampleOrder order{.items = 71, .global_batch = 64, .seed = 5, .whole_groups_of = 4};
  EXPECT_EQ(order.items_per_epoch(), 68);
  ASSERT_EQ(order.steps_per_epoch(), 2);
  for (std::int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<std::int64_t> seen;
    for (std::int64_t step = 0; step < 2; ++step) {
      for (std::int64_t place = 0; place < 64; ++place) {
        const std::int64_t item = order.item(2 * epoch + step, place);
        EXPECT_EQ(item >= 0, step == 0 || place < 4);
        if (item < 0) continue;
        EXPECT_TRUE(seen.insert(item).second);
      }
    }
    EXPECT_EQ(seen.size(), 68u);
  }
  EXPECT_EQ((SampleOrder{.items = 3, .global_batch = 8, .whole_groups_of = 4}.items_per_epoch()), 0);
  EXPECT_EQ((SampleOrder{.items = 103, .global_batch = 8}.items_per_epoch()), 103);
}

TEST(Loader, WorldSizeAndAccumulationDoNotChangeTheData) {
  const data::Encoded set = random_set(50, 9);
  const data::Items items = data::one_each(set);
  const auto trained = [&](int world, std::int64_t accumulation, std::int64_t first_step) {
    const SampleOrder order{.items = items.size(), .global_batch = 12, .seed = 7};
    std::vector<std::vector<std::int32_t>> steps(8);
    for (int rank = 0; rank < world; ++rank) {
      const Deal deal{
          .micro = 12 / world / accumulation, .accumulation = accumulation, .rank = rank, .world = world};
      Loader loader(set, items, order, deal, first_step, 2);
      for (std::size_t s = static_cast<std::size_t>(first_step); s < steps.size(); ++s) {
        for (std::int64_t a = 0; a < accumulation; ++a) {
          const HostBatch batch = loader.next();
          steps[s].insert(steps[s].end(), batch.ids.begin(), batch.ids.end());
        }
      }
    }
    return steps;
  };
  const auto reference = trained(1, 1, 0);
  EXPECT_EQ(trained(2, 1, 0), reference);
  EXPECT_EQ(trained(3, 2, 0), reference);
  EXPECT_EQ(trained(4, 3, 0), reference);
  const auto resumed = trained(2, 3, 5);
  for (std::size_t s = 5; s < 8; ++s) EXPECT_EQ(resumed[s], reference[s]);
}

TEST(Loader, LabelsAreShiftedInsideEachDocument) {
  HostBatch batch;
  const std::vector<std::int32_t> ids{1, 2, 3}, labels{-100, 2, 3}, other{7, 8}, other_labels{7, 8};
  add_document(batch, ids, labels);
  add_document(batch, other, other_labels);
  EXPECT_EQ(batch.positions, (std::vector<std::int32_t>{0, 1, 2, 0, 1}));
  EXPECT_EQ(batch.cu_seqlens, (std::vector<std::int32_t>{0, 3, 5}));
  EXPECT_EQ(batch.label_rows, (std::vector<std::int32_t>{0, 1, 3}));
  EXPECT_EQ(batch.targets, (std::vector<std::int32_t>{2, 3, 8}));
  EXPECT_EQ(batch.max_length, 3);
}

}  // namespace
}  // namespace octet::feed
