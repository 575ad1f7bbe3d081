// Feeds of streams: the position from which a run resumes, the inputs of its order, and the keys that reach
// them.

#include <algorithm>
#include <set>

#include "octet/base/json.h"
#include "octet/config/config.h"
#include "what_is_trained.h"

namespace octet::feed::stream_feeds_test {
namespace {

// ---- places in streams ----

class StreamFeeds : public WhatIsTrained {
 protected:
  StreamFeeds() {
    config_.streaming = true;
    config_.buffer_size = 20;
  }
};

TEST_F(StreamFeeds, ARunGoesOnAtItsPlaceInTheStream) {
  const Corpus corpus = this->corpus(config_);
  const auto whole = feed(config_, corpus);
  EXPECT_NE(printed_.find("streaming: 70 rows in 4 windows of 20 (buffer_size)"), std::string::npos)
      << printed_;
  EXPECT_NE(printed_.find("the first window: "), std::string::npos);
  EXPECT_EQ(whole->examples(), kRows);
  EXPECT_EQ(whole->steps_per_epoch(), 0);
  EXPECT_EQ(whole->steps_until_end_of(12), 12);
  EXPECT_EQ(whole->shape().tokens, 2 * 16);
  EXPECT_EQ(whole->shape().longest, 16);
  EXPECT_EQ(whole->shape().documents, 2);
  // As many items a row as in the first window.
  const auto items = static_cast<double>(whole->shown().documents());
  EXPECT_DOUBLE_EQ(whole->epochs(10), 40 / (items / 20 * 70));
  whole->start(deal());
  const std::vector<int> first = steps(*whole, 7);
  const Json place = state(*whole, batch_);
  EXPECT_GT(place["place"]["window"], 0);
  EXPECT_GT(place["place"]["item"], 0);
  EXPECT_EQ(place["place"]["window_rows"], 20);
  const std::vector<int> rest = steps(*whole, 8);
  EXPECT_TRUE(whole->step().ends_epoch);
  EXPECT_EQ(whole->step().samples, 4);
  EXPECT_EQ(whole->step().epoch, 1);
  EXPECT_EQ(whole->position()["epoch"], 1);
  const std::vector<int> second = steps(*whole, 3);
  EXPECT_GT(whole->step().tokens, 0);

  const auto again = feed(config_, corpus);
  again->go_on(7, place, "c");
  EXPECT_EQ(again->position(), place["place"]);
  again->start(deal());
  EXPECT_EQ(steps(*again, 8), rest);
  EXPECT_EQ(steps(*again, 3), second) << "the second epoch has an order of its own";
}

TEST_F(StreamFeeds, TheItemsOfAnEpochAreKnownOnceItsOnlyWindowIsRead) {
  for (const bool packs : {false, true}) {
    config_.packing = packs;
    for (const std::int64_t window : {20, 69}) {
      config_.buffer_size = window;
      const Corpus several = this->corpus(config_);
      EXPECT_EQ(feed(config_, several)->items_of_epoch(), std::nullopt) << window;
    }
    for (const std::int64_t window : {70, 16384}) {
      config_.buffer_size = window;
      const Corpus corpus = this->corpus(config_);
      const auto whole = feed(config_, corpus);
      ASSERT_TRUE(whole->items_of_epoch()) << window;
      whole->start(deal());
      std::int64_t items = 0;
      do {
        steps(*whole, 1);
        items += whole->step().samples;
      } while (!whole->step().ends_epoch);
      EXPECT_EQ(*whole->items_of_epoch(), items) << window;
    }
  }
}

TEST_F(StreamFeeds, FieldsAndRowsOfLaterWindowsAreReportedOnceAndInTheEnd) {
  struct Case {
    const char *name, *row, *event;
  };
  const Case cases[] = {
      {"a field that is not read", R"({"text":"5","documents":["d"]})", "have a column 'documents', which"},
      {"an unusable row", R"({"text":["5"]})", "were left out because they are not usable"},
      {"a row that cannot be read", R"({"text":)", "were left out because they cannot be read"},
  };
  config_.disable_shuffling = true;
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    std::string text;
    for (int row = 0; row < 80; ++row) {  // two of them in each of the last two of four windows
      const bool odd = row == 45 || row == 46 || row == 65 || row == 66;
      text += (odd ? std::string(c.row) : "{\"text\":\"" + std::to_string(row % 10) + "\"}") + "\n";
    }
    test::spill(folder_ / "rows.jsonl", text);
    config_.dataset = {folder_ / "rows.jsonl"};
    const Corpus corpus = this->corpus(config_);
    const auto made = feed(config_, corpus);
    EXPECT_EQ(printed_.find(c.event), std::string::npos) << printed_;
    const std::string all = said([&] {
      made->start(deal());
      steps(*made, 40);  // two epochs
      made->report_end();
    });
    EXPECT_NE(all.find(std::string("a later window: 2 ")), std::string::npos) << all;
    const std::size_t first = all.find(c.event);
    ASSERT_NE(first, std::string::npos) << all;
    const std::size_t total = all.find(c.event, first + 1);
    ASSERT_NE(total, std::string::npos) << all;
    EXPECT_EQ(all.find(c.event, total + 1), std::string::npos) << "once, and once in the end\n" << all;
    EXPECT_NE(all.find("all 4 windows that were read: 4 "), std::string::npos) << all;
  }
}

TEST_F(StreamFeeds, WhereOneStandsTheOrderMustBeTheSame) {
  const Corpus corpus = this->corpus(config_);
  const auto feed = this->feed(config_, corpus);
  feed->start(deal());
  steps(*feed, 2);
  Json inside = state(*feed, batch_), later = inside, begin = inside;
  ASSERT_GT(inside["place"]["item"], 0);
  ASSERT_EQ(inside["place"]["window"], 0);
  later["place"]["item"] = 0;
  later["place"]["window"] = 1;
  begin["place"]["item"] = 0;
  begin["place"]["epoch"] = 1;
  struct Row {
    Change change;
    bool refused;
  };
  using C = config::Config;
  for (const auto& [change, refused] :
       {Row{[](C&) {}, false}, Row{[](C& c) { c.seed = 7; }, true},
        Row{[](C& c) { c.disable_shuffling = true; }, true}, Row{[](C& c) { c.cutoff_len = 17; }, true},
        Row{[](C& c) { c.packing = true; }, true}}) {
    C config = config_;
    change(config);
    for (const Json& state : {inside, later}) {
      EXPECT_EQ(going_on(config, state).find("'disable_shuffling'") != std::string::npos, refused);
    }
    EXPECT_EQ(going_on(config, begin), "") << "a new epoch may have another order";
  }
  // Another message reports other data.
  C config = config_;
  config.seed = 7;
  encoder_.words = "others";
  EXPECT_EQ(going_on(config, inside), "");
}

TEST_F(StreamFeeds, ThePackingOfAStreamIsPartOfItsOrder) {
  config_.packing = true;
  config_.packing_strategy = "llamafactory";
  config_.preprocessing_batch_size = 10;
  const auto order = [&](const Change& change) {
    config::Config config = config_;
    change(config);
    const Corpus corpus = this->corpus(config);
    return feed(config, corpus)->position()["order"].get<std::string>();
  };
  using C = config::Config;
  std::set<std::string> orders;
  const std::vector<Change> changes{[](C&) {},
                                    [](C& c) { c.packing = false; },
                                    [](C& c) { c.packing_strategy = "best_fit"; },
                                    [](C& c) { c.neat_packing = true; },
                                    [](C& c) { c.preprocessing_batch_size = 20; },
                                    [](C& c) { c.buffer_size = 30; },
                                    [](C& c) { c.cutoff_len = 17; },
                                    [](C& c) { c.data_seed = 1; },
                                    [](C& c) { c.disable_shuffling = true; }};
  for (const Change& change : changes) orders.insert(order(change));
  EXPECT_EQ(orders.size(), changes.size());
  EXPECT_EQ(order([](C& c) { c.packing = false; }),
            order([](C& c) { c.packing = false, c.preprocessing_batch_size = 20, c.neat_packing = true; }))
      << "without packing these are nothing";
}

TEST_F(StreamFeeds, WindowsHoldWholeBatchesOfRowsWhereThosePackByThemselves) {
  const auto windows = [&](const std::string& strategy, std::int64_t buffer, std::int64_t batch_rows) {
    config_.packing = true;
    config_.packing_strategy = strategy;
    config_.buffer_size = buffer;
    config_.preprocessing_batch_size = batch_rows;
    const Corpus corpus = this->corpus(config_);
    return feed(config_, corpus)->position()["window_rows"].get<int>();
  };
  EXPECT_EQ(windows("best_fit", 25, 10), 25);
  EXPECT_EQ(windows("llamafactory", 25, 10), 20);
  EXPECT_EQ(windows("llamafactory", 20, 10), 20);
  EXPECT_EQ(windows("llamafactory", 7, 10), 10) << "one at least";
  config_.stage = "pt";
  EXPECT_EQ(windows("llamafactory", 39, 10), 30);
}

TEST_F(StreamFeeds, PlacesOfAnotherStreamAreRefused) {
  const Corpus corpus = this->corpus(config_);
  Json place = feed(config_, corpus)->position();
  place["window"] = 3;
  const auto refused = [&](const Json& state) {
    return going_on(config_, {{"place", state}}).find("'buffer_size'") != std::string::npos;
  };
  place["order"] = feed(config_, corpus)->position()["order"];
  EXPECT_FALSE(refused(place)) << "the last window";
  place["window"] = 4;
  EXPECT_TRUE(refused(place));
  place["window"] = 0;
  place["window_rows"] = 21;
  EXPECT_TRUE(refused(place));
}

TEST_F(StreamFeeds, TheFingerprintOfAStreamTellsItsFilesEncoderAndWindows) {
  const auto fingerprint = [&](const Change& change) {
    config::Config config = config_;
    change(config);
    const Corpus corpus = this->corpus(config);
    EXPECT_EQ(feed(config, corpus)->fingerprint(), corpus.fingerprint);
    return corpus.fingerprint;
  };
  using C = config::Config;
  write("more.txt", 300, 310);
  std::set<std::string> all{fingerprint([](C&) {})};
  EXPECT_EQ(fingerprint([](C&) {}), *all.begin());
  all.insert(fingerprint([](C& c) { c.buffer_size = 21; }));
  all.insert(fingerprint([](C& c) { c.max_samples = 69; }));
  all.insert(fingerprint([&](C& c) { c.dataset = {folder_ / "more.txt"}; }));
  all.insert(fingerprint([&](C& c) { c.dataset.push_back(folder_ / "more.txt"); }));
  encoder_.words = "others";
  all.insert(fingerprint([](C&) {}));
  EXPECT_EQ(all.size(), 6u);
}

TEST_F(StreamFeeds, HeldOutRowsAreNotTrained) {
  config_.val_size = 20;
  const Corpus corpus = this->corpus(config_);
  std::set<int> held(corpus.evaluation.ids.begin(), corpus.evaluation.ids.end());
  const auto feed = this->feed(config_, corpus);
  feed->start(deal());
  std::set<int> trained;
  do {
    for (const int row : steps(*feed, 1)) EXPECT_TRUE(trained.insert(row).second);
  } while (!feed->step().ends_epoch);
  for (const int row : trained) EXPECT_FALSE(held.contains(row)) << row;
  EXPECT_EQ(trained.size() + held.size(), static_cast<std::size_t>(kKept));
}

TEST_F(StreamFeeds, KeysReachTheStream) {
  const auto fed = [&](const Change& change, int count) {
    config::Config config = config_;
    change(config);
    const Corpus corpus = this->corpus(config);
    const auto feed = this->feed(config, corpus);
    feed->start(deal());
    return steps(*feed, count);
  };
  using C = config::Config;
  EXPECT_EQ(fed([](C& c) { c.disable_shuffling = true; }, 2), (std::vector<int>{0, 1, 2, 3, 4, 5, 7, 8}));
  EXPECT_NE(fed([](C& c) { c.seed = 1; }, 2), fed([](C& c) { c.seed = 2; }, 2));
  // 60 documents in steps of 8 end with a step of four, which is none of whole groups of eight.
  batch_ = {.micro = 4, .accumulation = 1, .world = 2, .global = 8};
  const auto samples = [&](bool drops, const std::string& bits) {
    config::Config config = config_;
    config.dataloader_drop_last = drops;
    config.deterministic = bits;
    const Corpus corpus = this->corpus(config);
    const auto feed = this->feed(config, corpus);
    feed->start({.micro = 4, .accumulation = 1, .rank = 0, .world = 2});
    std::int64_t count = 0;
    do {
      feed->next(true, nullptr);
      count += feed->step().samples;
    } while (!feed->step().ends_epoch);
    return count;
  };
  EXPECT_EQ(samples(false, "auto"), 60);
  EXPECT_EQ(samples(true, "auto"), 56);
  EXPECT_EQ(samples(true, "strict"), 60) << "micro-batches alone are whole then";
  config_.streaming = false;
  EXPECT_EQ(samples(false, "auto"), 60);
  EXPECT_EQ(samples(true, "auto"), 56);
  EXPECT_EQ(samples(true, "strict"), 60);
  batch_ = {.micro = 61, .accumulation = 1, .world = 1, .global = 61};
  EXPECT_NE(said([&] { samples(true, "auto"); }).find("dataloader_drop_last leaves no samples"),
            std::string::npos);
  batch_ = {.micro = 4, .accumulation = 1, .world = 1, .global = 4};
  // Rows that are too long, and such as cannot be read.
  config_.streaming = true;
  write("long.txt", 999, 1003);
  config_.dataset = {folder_ / "long.txt"};
  EXPECT_EQ(fed([](C& c) { c.disable_shuffling = true; }, 1).size(), 3u);
  EXPECT_NE(said([&] { fed([](C& c) { c.truncation = "error"; }, 1); }).find("at most 16 tokens"),
            std::string::npos);
  std::string broken;
  for (int i = 0; i < 4; ++i) broken += "{\"text\":\"" + std::to_string(i) + "\"}\n{\n";
  test::spill(folder_ / "broken.jsonl", broken);
  config_.dataset = {folder_ / "broken.jsonl"};
  EXPECT_EQ(fed([](C& c) { c.max_broken_rows = 4; }, 1).size(), 4u);
  EXPECT_NE(said([&] { fed([](C& c) { c.max_broken_rows = 3; }, 1); }).find("4 of 8 rows"),
            std::string::npos);
}

TEST_F(StreamFeeds, AMicroBatchMayHoldAsManyDocumentsAsPackingAllows) {
  const auto documents = [&](const Change& change) {
    config::Config config = config_;
    change(config);
    const Corpus corpus = this->corpus(config);
    return feed(config, corpus)->shape().documents;
  };
  using C = config::Config;
  EXPECT_EQ(documents([](C&) {}), 2);
  EXPECT_EQ(documents([](C& c) { c.packing = true; }), 2 * 8);
  EXPECT_EQ(documents([](C& c) { c.packing = true, c.packing_strategy = "llamafactory"; }), 2)
      << "they share their context";
}

}  // namespace
}  // namespace octet::feed::stream_feeds_test
