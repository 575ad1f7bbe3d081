#include "octet/feed/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

#include "octet/feed/loader.h"
#include "support/encoded.h"

namespace octet::feed::schedule_test {
namespace {

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

// As in Hugging Face's Trainer: 17 micro-batches of 4, and a step with only the last micro-batch.
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

// Steps of any size in a row, each resumed from the position of the previous step.
TEST(SampleOrder, GoesOnAtAPlaceInTheItemsWithStepsOfAnySize) {
  std::mt19937 draw(11);
  const auto up_to = [&draw](std::int64_t most) {
    return 1 + static_cast<std::int64_t>(draw() % static_cast<std::uint64_t>(most));
  };
  for (int walk = 0; walk < 300; ++walk) {
    SampleOrder order{.items = up_to(200), .seed = 5};
    std::set<std::int64_t> seen;
    SamplePlace at;
    std::int64_t step = 0;
    while (at.epoch < 3) {
      order.global_batch = up_to(40);
      order.go_on(step, at);
      for (const std::int64_t stop = step + up_to(6); step < stop; ++step) {
        at = order.place(step + 1);
        for (std::int64_t nth = 0; nth < order.global_batch; ++nth) {
          const std::int64_t item = order.item(step, nth);
          const bool fresh = item < 0 || seen.insert(item).second;
          ASSERT_TRUE(fresh) << "walk " << walk << ", step " << step;
        }
        if (at.item > 0) continue;
        ASSERT_EQ(seen.size(), static_cast<std::size_t>(order.items)) << "walk " << walk;
        seen.clear();
      }
    }
  }
}

TEST(SampleOrder, WhatIsLeftOfAnEpochIsWholeGroupsToo) {
  // 24 of 71 are done, in groups of 8. 45 of the 47 left are whole groups of 5.
  SampleOrder order{.items = 71, .global_batch = 10, .seed = 5, .whole_groups_of = 5};
  order.go_on(3, {.item = 24});
  std::int64_t items = 0;
  for (std::int64_t step = 3; step < 8; ++step) {
    for (std::int64_t nth = 0; nth < 10; ++nth) items += order.item(step, nth) >= 0 ? 1 : 0;
  }
  EXPECT_EQ(items, 45);
  EXPECT_EQ(order.place(8), (SamplePlace{.epoch = 1}));
  EXPECT_GE(order.item(14, 9), 0) << "the epoch behind has 70 again, seven steps";
  EXPECT_EQ(order.place(15), (SamplePlace{.epoch = 2}));
  // The rest of the epoch fills no group, so the next epoch begins.
  order.go_on(9, {.item = 68});
  EXPECT_EQ(order.first, (SamplePlace{.epoch = 1}));
}

TEST(SampleOrder, TellsTheStepThatEndsWhereAFreshRunEnds) {
  SampleOrder order{.items = 103, .global_batch = 8};
  EXPECT_EQ(order.steps_until_end_of(39), 39);
  order.go_on(20, order.place(20));
  EXPECT_EQ(order.steps_until_end_of(39), 39) << "no step had another size";
  // Thirty steps of 4 are done: 103 samples, and 17 of the second epoch. Its other 86 samples are eleven
  // steps of 8.
  order.go_on(56, {.epoch = 1, .item = 17});
  EXPECT_EQ(order.steps_until_end_of(26), 56 + 11);
  EXPECT_EQ(order.steps_until_end_of(39), 56 + 11 + 13);
  EXPECT_EQ(order.steps_until_end_of(13 + 6), 56 + 4) << "the end is 48 of the second epoch";
  EXPECT_EQ(order.steps_until_end_of(13), 56) << "it is behind";
}

TEST(Loader, WorldSizeAndAccumulationDoNotChangeTheData) {
  const data::Encoded set = test::set_of(50, 9);
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
          const runtime::HostBatch batch = loader.next();
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

// Memory does not grow with accumulation.
TEST(Loader, HoldsAWholeStepOrAsManyTokensAsItMay) {
  const data::Encoded set = test::set_of(1000, 9);
  const data::Items items = data::one_each(set);
  const auto held = [&](std::int64_t accumulation, std::int64_t most_tokens) {
    const SampleOrder order{.items = items.size(), .global_batch = accumulation, .seed = 7};
    Loader loader(set, items, order, {.micro = 1, .accumulation = accumulation}, 0, 2, most_tokens);
    EXPECT_EQ(loader.failure(), nullptr);
    std::size_t most = loader.waiting();
    for (std::int64_t a = 0; a < accumulation; ++a) {
      EXPECT_EQ(loader.next().items, 1);
      most = std::max(most, loader.waiting());
    }
    return most;
  };
  EXPECT_EQ(held(1000, 64 * 1000), 1000U);
  EXPECT_EQ(held(1000, 64 * 10), 10U);
  EXPECT_EQ(held(1000, 1), 2U) << "always a few ahead";
}

}  // namespace
}  // namespace octet::feed::schedule_test
