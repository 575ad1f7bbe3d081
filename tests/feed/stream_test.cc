// Streams: every rank the same items, any step found again from its position, no row lost or twice in an
// epoch.
#include "octet/feed/stream.h"
#include "octet/base/json.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "numbers.h"
#include "octet/base/error.h"
#include "support/temporary_folder.h"

namespace octet::feed::stream_test {
namespace {

class Streams : public testing::Test {
 protected:
  static constexpr int kRows = 150;
  Streams() {
    std::ofstream file(folder_ + "/rows.txt", std::ios::binary);
    // Blank lines and both kinds of line ends, so that places are not lines.
    for (int i = 0; i < kRows; ++i) file << i << (i % 3 == 0 ? "\r\n" : "\n") << (i % 11 == 0 ? "\n \n" : "");
    file.close();
    mix_ = data::RowMix(data::open_datasets({.dataset = {folder_ + "/rows.txt"}}), {});
  }

  StreamOptions options(std::int64_t window, std::int64_t batch) const {
    StreamOptions out;
    out.window_rows = window;
    out.global_batch = batch;
    out.seed = 5;
    out.threads = 2;
    return out;
  }
  // First tokens of the documents of `steps` steps, a step a list, as ranks of this world would get them.
  std::vector<std::vector<int>> run(const Stream& stream, int world, int steps, StreamPosition from = {},
                                    std::vector<StreamPosition>* behind = nullptr) const {
    const std::int64_t micro = stream.options().global_batch / world;
    std::vector<std::vector<int>> out(static_cast<std::size_t>(steps));
    for (int rank = 0; rank < world; ++rank) {
      StreamLoader loader(stream, {.micro = micro, .accumulation = 1, .rank = rank, .world = world}, from);
      for (auto& step : out) {
        const runtime::HostBatch batch = loader.next();
        for (std::int64_t d = 0; d < batch.documents(); ++d) {
          step.push_back(batch.ids[static_cast<std::size_t>(batch.cu_seqlens[static_cast<std::size_t>(d)])]);
        }
        if (behind && rank == 0) behind->push_back(loader.step().behind);
      }
    }
    return out;
  }

  octet::test::TemporaryFolder scratch_{"stream"};
  const std::string& folder_ = scratch_.path();
  data::RowMix mix_;
  Numbers encoder_;
};

TEST_F(Streams, AnEpochHoldsEveryRowOnce) {
  std::vector<int> expected;
  for (int i = 0; i < kRows; ++i) {
    if (i % 7 != 6) expected.push_back(i);
  }
  for (const std::int64_t window : {1, 16, 64, 150, 1000}) {
    for (const std::int64_t batch : {1, 12, 200}) {
      SCOPED_TRACE(std::to_string(window) + " rows, batch " + std::to_string(batch));
      const Stream stream(mix_, encoder_, options(window, batch));
      StreamLoader loader(stream, {.micro = batch}, {});
      std::vector<int> seen;
      do {
        const runtime::HostBatch items = loader.next();
        EXPECT_EQ(items.items, loader.step().items);
        EXPECT_EQ(items.tokens(), loader.step().tokens);
        for (std::int64_t d = 0; d < items.documents(); ++d) {
          seen.push_back(items.ids[static_cast<std::size_t>(items.cu_seqlens[static_cast<std::size_t>(d)])]);
        }
      } while (!loader.step().ends_epoch);
      EXPECT_EQ(loader.step().epochs, 1.0);
      EXPECT_NE(seen, expected) << "they are shuffled";
      std::ranges::sort(seen);
      EXPECT_EQ(seen, expected);
    }
  }
}

TEST_F(Streams, EpochsAreCountedOverWindowsAndThePartOfOne) {
  const Stream stream(mix_, encoder_, options(40, 8));  // 150 rows, four windows
  ASSERT_EQ(stream.windows(), 4);
  EXPECT_EQ(stream.epochs_at({}, 34), 0.0);
  EXPECT_EQ(stream.epochs_at({.epoch = 0, .window = 1, .item = 17}, 34), 0.375);
  EXPECT_EQ(stream.epochs_at({.epoch = 2, .window = 3, .item = 0}, 34), 2.75);
  EXPECT_EQ(stream.epochs_at({.epoch = 2, .window = 3, .item = 0}, 0), 2.75) << "a window without items";
  // As a loader counts them: never back, and by at most a step's share.
  StreamLoader loader(stream, {.micro = 8}, {});
  double before = 0;
  for (int step = 0; step < 40; ++step) {
    loader.next();
    EXPECT_GT(loader.step().epochs, before);
    EXPECT_LT(loader.step().epochs, before + 0.1);
    before = loader.step().epochs;
  }
}

// Rows 0-15 and 112-127 are two windows in which the same places give nothing (7 divides 112).
TEST_F(Streams, EveryWindowHasAnOrderOfItsOwn) {
  const Stream stream(mix_, encoder_, options(16, 1));
  std::vector<int> first, later;
  for (const auto& step : run(stream, 1, kRows - kRows / 7)) {
    for (const int row : step) {
      if (row < 16) first.push_back(row);
      if (row >= 112 && row < 128) later.push_back(row - 112);
    }
  }
  ASSERT_EQ(first.size(), later.size());
  ASSERT_GE(first.size(), 13u);
  EXPECT_NE(first, later);
}

TEST_F(Streams, AWindowHasAnotherOrderInEveryEpoch) {
  const Stream stream(mix_, encoder_, options(1000, 1));  // one window with all rows
  ASSERT_EQ(stream.windows(), 1);
  constexpr int items = kRows - kRows / 7;
  const auto steps = run(stream, 1, 2 * items);
  const std::vector<std::vector<int>> first(steps.begin(), steps.begin() + items),
      second(steps.begin() + items, steps.end());
  EXPECT_NE(first, second);
  EXPECT_TRUE(std::ranges::is_permutation(first, second));
}

TEST_F(Streams, TheNumberOfRanksChangesNothing) {
  const Stream stream(mix_, encoder_, options(32, 12));
  const auto one = run(stream, 1, 30);
  EXPECT_EQ(run(stream, 2, 30).size(), one.size());
  for (const int world : {2, 3, 4}) {
    auto many = run(stream, world, 30);
    for (std::size_t s = 0; s < one.size(); ++s) {
      std::ranges::sort(many[s]);
      auto step = one[s];
      std::ranges::sort(step);
      EXPECT_EQ(many[s], step) << "step " << s << " of " << world << " ranks";
    }
  }
}

TEST_F(Streams, AnyStepIsFoundAgainFromItsPosition) {
  const Stream stream(mix_, encoder_, options(20, 8));
  std::vector<StreamPosition> behind;
  const auto all = run(stream, 1, 40, {}, &behind);
  for (std::size_t from = 0; from + 5 < all.size(); from += 3) {
    const auto rest = run(stream, 1, 5, behind[from]);
    for (std::size_t s = 0; s < rest.size(); ++s) EXPECT_EQ(rest[s], all[from + 1 + s]) << from << " + " << s;
  }
}

TEST_F(Streams, StepsOfAnotherSizeGoOnAtThePlace) {
  std::vector<int> seen;
  StreamPosition at;
  for (std::int64_t batch = 1; at.epoch == 0; batch = batch % 12 + 5) {
    const Stream stream(mix_, encoder_, options(20, batch));
    std::vector<StreamPosition> behind;
    const auto steps = run(stream, 1, 1, at, &behind);
    seen.insert(seen.end(), steps[0].begin(), steps[0].end());
    at = behind[0];
  }
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kRows - kRows / 7));
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
}

TEST_F(Streams, WithoutShufflingItIsTheOrderOfTheRows) {
  StreamOptions plain = options(16, 10);
  plain.shuffle = false;
  const auto steps = run(Stream(mix_, encoder_, plain), 1, 3);
  EXPECT_EQ(steps[0], (std::vector<int>{0, 1, 2, 3, 4, 5, 7, 8, 9, 10}));
}

TEST_F(Streams, PackedWindowsKeepTheirDocumentsApart) {
  StreamOptions packed = options(40, 4);
  packed.layout = [](data::Encoded& set) { return data::pack_best_fit(set, 16); };
  const Stream stream(mix_, encoder_, packed);
  StreamLoader loader(stream, {.micro = 4}, {});
  std::int64_t tokens = 0, places = 0;
  do {
    const runtime::HostBatch batch = loader.next();
    EXPECT_LE(batch.tokens(), 4 * 16);
    EXPECT_LE(batch.max_length, 6);
    tokens += batch.tokens(), places += batch.items * 16;
  } while (!loader.step().ends_epoch);
  EXPECT_GT(static_cast<double>(tokens) / static_cast<double>(places), 0.95);
}

TEST_F(Streams, WhatFillsNoGroupAtTheEndOfAnEpochIsLeftOut) {
  struct Case {
    std::int64_t group;
    std::vector<std::int64_t> steps;  // of each epoch of 129 documents
  };
  for (const auto& [group, steps] : {Case{1, {60, 60, 9}}, Case{4, {60, 60, 8}}, Case{30, {60, 60}}}) {
    SCOPED_TRACE("groups of " + std::to_string(group));
    StreamOptions whole = options(16, 60);
    whole.whole_groups_of = group;
    const Stream stream(mix_, encoder_, whole);
    StreamLoader loader(stream, {.micro = 60}, {});
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      for (std::size_t i = 0; i < steps.size(); ++i) {
        EXPECT_EQ(loader.next().items, steps[i]);
        const bool last = i + 1 == steps.size();
        EXPECT_EQ(loader.step().ends_epoch, last);
        EXPECT_EQ(loader.step().behind.epoch, epoch + (last ? 1 : 0));
      }
    }
  }
  // A step that is not filled is trained, an epoch that fills no group is refused.
  StreamOptions few = options(16, 500);
  few.whole_groups_of = 100;
  const Stream small(mix_, encoder_, few);
  StreamLoader all(small, {.micro = 500}, {});
  EXPECT_EQ(all.next().items, 100);
  EXPECT_EQ(all.next().items, 100);
  few.whole_groups_of = 250;
  const Stream none(mix_, encoder_, few);
  StreamLoader nothing(none, {.micro = 500}, {});
  EXPECT_THROW(nothing.next(), Error);
}

// The rest of a resumed epoch may be empty, or too small for a group. Then the next epoch follows.
TEST_F(Streams, TheRestOfAnEpochMayBeNothing) {
  StreamOptions one = options(1000, 4);
  const Stream stream(mix_, encoder_, one);
  one.whole_groups_of = 4;
  const Stream groups(mix_, encoder_, one);
  for (const Stream* s : {&stream, &groups}) {
    StreamLoader loader(*s, {.micro = 4}, {.epoch = 2, .window = 0, .item = 129});
    EXPECT_EQ(loader.next().items, 4);
    EXPECT_EQ(loader.step().behind, (StreamPosition{.epoch = 3, .window = 0, .item = 4}));
  }
  StreamLoader last(groups, {.micro = 4}, {.epoch = 2, .window = 0, .item = 128});
  EXPECT_EQ(last.next().items, 4) << "one item is no group";
  EXPECT_EQ(last.step().behind.epoch, 3);
  StreamLoader some(stream, {.micro = 4}, {.epoch = 2, .window = 0, .item = 128});
  EXPECT_EQ(some.next().items, 1);
  EXPECT_TRUE(some.step().ends_epoch);
}

TEST_F(Streams, RowsLeftOutAreNotTrained) {
  StreamOptions some = options(16, 1);
  for (const std::int64_t place : mix_.choose(40, 3)) {
    const auto row = mix_.at(place);
    some.left_out.emplace(row.file, row.row);
  }
  EXPECT_EQ(some.left_out.size(), 40u);
  const Stream stream(mix_, encoder_, some);
  StreamLoader loader(stream, {.micro = 1}, {});
  std::int64_t kept = 0;
  do {
    const runtime::HostBatch batch = loader.next();
    EXPECT_FALSE(some.left_out.contains({mix_.sources()[0].files[0].get(), batch.ids[0]}));
    ++kept;
  } while (!loader.step().ends_epoch);
  EXPECT_LT(kept, 129);
  EXPECT_GE(kept, 129 - 40);
}

// One row of each window cannot be read. The limit counts the rows of all windows of an epoch.
TEST_F(Streams, BrokenRowsAreCountedOverTheWindowsOfAnEpoch) {
  std::ofstream file(folder_ + "/broken.jsonl");
  for (int i = 0; i < 40; ++i)
    file << (i % 10 == 4 ? "{" : R"({"text": ")" + std::to_string(i) + "\"}") << "\n";
  file.close();
  const data::RowMix mix(data::open_datasets({.dataset = {folder_ + "/broken.jsonl"}}), {});
  StreamOptions some = options(10, 1);
  const auto two_epochs = [&](std::int64_t most) {
    some.max_broken = most;
    const Stream stream(mix, encoder_, some);
    StreamLoader loader(stream, {.micro = 1}, {});
    for (int epochs = 0; epochs < 2;) {
      loader.next();
      epochs += loader.step().ends_epoch ? 1 : 0;
    }
  };
  EXPECT_NO_THROW(two_epochs(4)) << "an epoch begins to count anew";
  for (const std::int64_t most : {1, 2, 3}) {
    try {
      two_epochs(most);
      ADD_FAILURE() << most;
    } catch (const Error& e) {
      const std::string message = e.what();
      EXPECT_EQ(e.code(), ExitCode::usage);
      for (const std::string& piece :
           {"at most " + std::to_string(most),
            std::to_string(most + 1) + " of " + std::to_string(10 * (most + 1)) + " rows",
            std::string("broken.jsonl:")})
        EXPECT_NE(message.find(piece), std::string::npos) << piece << "\n" << message;
    }
  }
}

TEST_F(Streams, FilesOfOneSetWithOtherColumnsAreRefused) {
  std::ofstream(folder_ + "/x1.jsonl") << R"({"text": "1"})"
                                       << "\n";
  std::ofstream(folder_ + "/x2.jsonl") << R"({"prompt": "1", "completion": "2"})"
                                       << "\n";
  try {
    data::open_datasets({.dataset = {folder_ + "/x*.jsonl"}});
    FAIL() << "no error";
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_NE(message.find("different columns"), std::string::npos) << message;
    EXPECT_NE(message.find("x2.jsonl:1"), std::string::npos) << message;
  }
}

// Lines are found again between remembered places.
TEST_F(Streams, EveryLineHasItsTextAndNumber) {
  const data::RowReader& reader = *mix_.sources()[0].files[0];
  ASSERT_EQ(reader.size(), kRows);
  int line = 1;
  for (int i = 0; i < kRows; ++i) {
    EXPECT_EQ(reader.row(i)["text"], std::to_string(i));
    EXPECT_EQ(reader.where(i), reader.path() + ":" + std::to_string(line));
    line += i % 11 == 0 ? 3 : 1;
  }
  EXPECT_ANY_THROW(reader.row(kRows));
  EXPECT_ANY_THROW(reader.row(-1));
}

}  // namespace
}  // namespace octet::feed::stream_test
