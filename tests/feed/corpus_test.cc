// What a run trains and evaluates, and where it goes on: corpora, feeds and their places, key by key.
#include "octet/feed/corpus.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "numbers.h"
#include "octet/base/error.h"
#include "octet/config/derive.h"
#include "octet/feed/feed.h"
#include "support/program.h"

namespace octet::feed {
namespace {

namespace fs = std::filesystem;

class WhatIsTrained : public testing::Test {
 protected:
  static constexpr int kRows = 70, kKept = 60;
  WhatIsTrained() : folder_("feeds"), session_(DeviceWish::cpu) {
    write("rows.txt", 0, kRows);
    config_.dataset = {folder_ / "rows.txt"};
    config_.preprocessing_num_workers = 2;
    config_.cutoff_len = 16;
    batch_ = {.micro = 2, .accumulation = 2, .world = 1, .global = 4};
  }
  void write(const std::string& name, int first, int last) const {
    std::string text;
    for (int i = first; i < last; ++i) text += std::to_string(i) + "\n";
    test::spill(folder_ / name, text);
  }
  /// What `body` prints and, where it throws one, its Error's words.
  std::string said(const std::function<void()>& body) {
    testing::internal::CaptureStderr();
    quiet_ = true;
    std::string text;
    try {
      body();
    } catch (const Error& e) {
      text = e.what();
    }
    quiet_ = false;
    return testing::internal::GetCapturedStderr() + text;
  }
  /// Keeps what is printed meanwhile in printed_.
  template <typename Body>
  auto quietly(const Body& body) {
    if (quiet_) return body();
    struct Capture {
      std::string& printed;
      explicit Capture(std::string& text) : printed(text) { testing::internal::CaptureStderr(); }
      ~Capture() { printed = testing::internal::GetCapturedStderr(); }
      Capture(const Capture&) = delete;
      Capture& operator=(const Capture&) = delete;
    } capture(printed_);
    return body();
  }
  Corpus corpus(const config::Config& config) {
    return quietly([&] { return build_corpus(session_, config, encoder_); });
  }
  std::unique_ptr<Feed> feed(const config::Config& config, const Corpus& corpus) {
    return quietly([&] { return make_feed(session_, config, batch_, encoder_, corpus); });
  }
  Deal deal() const { return {.micro = batch_.micro, .accumulation = batch_.accumulation}; }
  /// First tokens of the documents of so many steps.
  std::vector<int> steps(Feed& feed, int count) const {
    std::vector<int> seen;
    for (int step = 0; step < count; ++step) {
      for (std::int64_t a = 0; a < batch_.accumulation; ++a) {
        const runtime::HostBatch batch = feed.next(a == 0, nullptr);
        for (std::int64_t d = 0; d < batch.documents(); ++d) {
          seen.push_back(batch.ids[static_cast<std::size_t>(batch.cu_seqlens[static_cast<std::size_t>(d)])]);
        }
      }
    }
    return seen;
  }
  /// As a checkpoint tells it.
  static Json state(const Feed& feed, const config::Batch& batch) {
    return parse_json(Json{{"place", feed.position()},
                           {"data_fingerprint", feed.fingerprint()},
                           {"global_batch", batch.global}}
                          .dump(),
                      "state");
  }
  /// The keys of the error, or "" where the run goes on.
  std::string going_on(const config::Config& config, const Json& state) {
    const Corpus corpus = this->corpus(config);
    const auto feed = this->feed(config, corpus);
    try {
      feed->go_on(3, state, "c");
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_TRUE(e.problem().where.starts_with("c")) << e.problem().where;
      return e.problem().where;
    }
    return "";
  }

  test::TemporaryFolder folder_;
  runtime::Session session_;
  config::Config config_;
  config::Batch batch_;
  Numbers encoder_;
  std::string printed_;
  bool quiet_ = false;
};

using Change = std::function<void(config::Config&)>;

// ---- corpora ----

TEST_F(WhatIsTrained, RowsAreHeldOutByCountOrByShare) {
  struct Case {
    double val_size;
    std::int64_t rows;
  };
  for (const auto& [val_size, rows] : {Case{5, 5}, Case{1, 1}, Case{0.1, 7}, Case{0.11, 8}, Case{0.99, 70}}) {
    SCOPED_TRACE(val_size);
    for (const bool streaming : {false, true}) {
      config_.streaming = streaming;
      config_.val_size = val_size;
      if (rows == kRows) {
        EXPECT_NE(said([&] { corpus(config_); }).find("val_size leaves nothing to train on"),
                  std::string::npos);
        continue;
      }
      const Corpus made = corpus(config_);
      const std::int64_t held = made.evaluation.documents();
      EXPECT_LE(held, rows);
      EXPECT_GE(held, rows - 3) << "some rows give nothing";
      EXPECT_EQ(made.evaluation_items.size(), held);
      EXPECT_EQ(made.held_out.size(), static_cast<std::size_t>(streaming ? rows : 0));
      EXPECT_EQ(made.training.documents(), streaming ? 0 : kKept - held);
      EXPECT_EQ(made.rows != nullptr, streaming);
      EXPECT_EQ(made.names, std::vector<std::string>{folder_ / "rows.txt"});
    }
  }
  config_.val_size = 70;
  EXPECT_THROW(corpus(config_), Error);
}

TEST_F(WhatIsTrained, AnotherSeedHoldsOutOtherRows) {
  config_.val_size = 9;
  for (const bool streaming : {false, true}) {
    config_.streaming = streaming;
    const auto held = [&](std::int64_t seed, std::optional<std::int64_t> data_seed) {
      config_.seed = seed;
      config_.data_seed = data_seed;
      const Corpus made = corpus(config_);
      return std::vector<std::int32_t>(made.evaluation.ids.begin(), made.evaluation.ids.end());
    };
    EXPECT_EQ(held(3, {}), held(3, {}));
    EXPECT_NE(held(3, {}), held(4, {}));
    EXPECT_EQ(held(4, 3), held(3, {})) << "data_seed goes before seed";
    config_.data_seed.reset();
  }
}

// Rows that are repeated are one row: of 3 and 67 in turn, the short set again and again.
TEST_F(WhatIsTrained, RepeatedRowsAreHeldOutAsOne) {
  write("few.txt", 100, 103);
  config_.dataset.push_back(folder_ / "few.txt");
  config_.mix_strategy = "interleave_over";
  config_.val_size = 72;
  const Corpus made = corpus(config_);
  EXPECT_EQ(made.names.size(), 2u);
  std::set<std::int32_t> trained(made.training.ids.begin(), made.training.ids.end());
  EXPECT_LE(trained.size(), 1u) << "73 rows there are, and one is left";
  config_.val_size = 73;
  EXPECT_NE(said([&] { corpus(config_); }).find("fewer than the 73 rows"), std::string::npos);
}

TEST_F(WhatIsTrained, WhatIsEvaluatedHasASetOfItsOwn) {
  write("other.txt", 200, 208);
  config_.eval_dataset = {folder_ / "other.txt"};
  for (const bool streaming : {false, true}) {
    config_.streaming = streaming;
    const Corpus made = corpus(config_);
    EXPECT_EQ(made.evaluation.counts.rows, 8);
    EXPECT_EQ(made.evaluation_items.size(), made.evaluation.documents());
    EXPECT_EQ(made.training.documents(), streaming ? 0 : kKept);
    EXPECT_NE(printed_.find("evaluation data: 7 documents of 8 rows"), std::string::npos) << printed_;
  }
  config_.eval_dataset = {folder_ / "nowhere.txt"};
  EXPECT_NE(said([&] { check_datasets(config_); }).find("configuration key 'eval_dataset'"),
            std::string::npos);
  config_.eval_dataset = {folder_ / "six.txt"};
  write("six.txt", 6, 7);
  for (const bool streaming : {false, true}) {
    config_.streaming = streaming;
    EXPECT_NE(said([&] { corpus(config_); }).find("the evaluation data set has nothing to train on"),
              std::string::npos);
  }
}

TEST_F(WhatIsTrained, NothingToTrainOnIsSaidWithWhatBecameOfTheRows) {
  write("six.txt", 6, 7);
  config_.dataset = {folder_ / "six.txt"};
  const std::string text = said([&] { corpus(config_); });
  EXPECT_NE(text.find("the data set has nothing to train on"), std::string::npos) << text;
  EXPECT_NE(text.find("1 rows, 0 not usable, 0 not readable, 1 without trained tokens"), std::string::npos)
      << text;
  config_.dataset = {folder_ / "rows.txt"};
  config_.packing = true;
  config_.packing_strategy = "llamafactory";
  config_.stage = "pt";
  config_.cutoff_len = 4096;
  EXPECT_NE(said([&] { corpus(config_); }).find("cut into blocks of cutoff_len"), std::string::npos);
}

TEST_F(WhatIsTrained, WhatBecameOfTheRowsIsToldOnceForEachKind) {
  data::Encoded set;
  set.counts = {.rows = 5000,
                .documents = 4000,
                .tokens = 1234567,
                .trained = 7654,
                .invalid = 2,
                .dropped = 3,
                .unlabelled = 4,
                .truncated = 5,
                .cut_answers = 6,
                .broken = 1001,
                .reasons = {"a:1: b", "c:2: d"}};
  EXPECT_EQ(said([&] { report_counts(set, "the set"); }),
            "the set: 4,000 documents of 5,000 rows, 1,234,567 tokens, 7,654 of them trained\n"
            "warning: the set: 1,001 rows were left out because they cannot be read\n"
            "warning: the set: 2 rows were left out because they are not usable\n"
            "warning:   a:1: b\nwarning:   c:2: d\n"
            "warning: the set: 3 rows were left out because the template gives nothing for them\n"
            "warning: the set: 4 rows were left out because they have no trained token\n"
            "warning: the set: 5 rows were cut to cutoff_len (texts: to pack_factor times that)\n"
            "warning: the set: 6 rows lost the end of an answer: the model does not learn there to stop\n");
  set.counts = {.rows = 1, .documents = 1};
  EXPECT_EQ(said([&] { report_counts(set, "x"); }),
            "x: 1 documents of 1 rows, 0 tokens, 0 of them trained\n");
}

TEST_F(WhatIsTrained, SequencesAreLaidOutAsPackingSays) {
  const auto items = [&](const Change& change) {
    config::Config config = config_;
    change(config);
    data::Encoded set;
    for (const std::int64_t length : {9, 9, 6, 7, 6}) {
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(length),
                                          static_cast<std::int32_t>(length));
      set.append(ids, ids, set.documents());
    }
    const data::Items made = lay_out(set, config, encoder_);
    std::string text = made.shared_context ? "shared" : "apart";
    for (std::int64_t i = 0; i < made.size(); ++i) text += " " + std::to_string(made.tokens(set, i));
    const std::string filled = said([&] { report_packing(set, made, config); });
    EXPECT_EQ(filled.empty(), !config.packing) << filled;
    return text + (filled.empty() ? "" : " " + filled.substr(filled.find("sequences") + 11)) +
           (set.ids[0] == 9 ? "" : " begin " + std::to_string(set.ids[0]));
  };
  const auto llamafactory = [](config::Config& c) { c.packing = true, c.packing_strategy = "llamafactory"; };
  EXPECT_EQ(items([](config::Config&) {}), "apart 9 9 6 7 6");
  EXPECT_EQ(items([](config::Config& c) { c.packing = true; }), "apart 16 15 6 77.08 % full\n");
  EXPECT_EQ(items(llamafactory), "shared 15 15 7 77.08 % full\n") << "one token is kept for the padding";
  EXPECT_EQ(items([&](config::Config& c) { llamafactory(c), c.neat_packing = true; }),
            "apart 15 15 7 77.08 % full\n");
  EXPECT_EQ(items([&](config::Config& c) { llamafactory(c), c.preprocessing_batch_size = 2; }),
            "shared 9 9 13 6 57.81 % full\n");
  const auto blocks = [&](config::Config& c) { llamafactory(c), c.stage = "pt"; };
  EXPECT_EQ(items(blocks), "apart 16 16 100.0 % full\n");
  encoder_.bos = 3;
  EXPECT_EQ(items(blocks), "apart 16 16 100.0 % full\n begin 3");
  EXPECT_EQ(items([&](config::Config& c) { blocks(c), c.preprocessing_batch_size = 1, c.cutoff_len = 6; }),
            "apart 6 6 6 6 6 100.0 % full\n begin 3");
}

TEST_F(WhatIsTrained, TheFirstExampleShowsWhatIsTrained) {
  data::Encoded set;
  EXPECT_EQ(show_example(set, encoder_, false), "");
  set.append(std::vector<std::int32_t>{0, 1, 2, 3, 4}, std::vector<std::int32_t>{-100, 1, 2, -100, 4}, 0);
  EXPECT_EQ(show_example(set, encoder_, false),
            "first example (trained in [[ ]]):\na[[bc]]d[[e]]\ninput_ids: [0, 1, 2, 3, 4]");
  EXPECT_EQ(
      show_example(set, encoder_, true),
      "first example (trained green):\na\033[32mbc\033[0md\033[32me\033[0m\ninput_ids: [0, 1, 2, 3, 4]");
  const auto of = [&](std::size_t length) {
    data::Encoded long_set;
    const std::vector<std::int32_t> ids(length, 1), labels(length, -100);
    long_set.append(ids, labels, 0);
    return show_example(long_set, encoder_, false);
  };
  const std::string text512(512, 'b');
  EXPECT_TRUE(of(64).ends_with(", 1, 1]"));
  EXPECT_TRUE(of(65).ends_with(", 1, 1, …]"));
  EXPECT_NE(of(512).find("\n" + text512 + "\n"), std::string::npos);
  EXPECT_NE(of(513).find("\n" + text512 + "…\n"), std::string::npos);
}

// ---- tokens that are kept ----

TEST_F(WhatIsTrained, KeptTokensServeAsLongAsNothingIsChanged) {
  config_.tokenized_path = folder_ / "tokens";
  const auto made = [&](const Change& change) {
    config::Config config = config_;
    change(config);
    const Corpus corpus = this->corpus(config);
    EXPECT_EQ(corpus.training.counts.rows, static_cast<std::int64_t>(config.max_samples.value_or(kRows)));
    return printed_.find("tokens kept in") != std::string::npos;
  };
  EXPECT_TRUE(made([](config::Config&) {}));
  EXPECT_FALSE(made([](config::Config&) {}));
  EXPECT_NE(printed_.find("training data: tokens taken from " + (folder_ / "tokens")), std::string::npos);
  EXPECT_NE(printed_.find("training data: 60 documents of 70 rows"), std::string::npos);
  EXPECT_TRUE(made([](config::Config& c) { c.overwrite_cache = true; }));
  EXPECT_FALSE(made([](config::Config&) {}));
  EXPECT_TRUE(made([](config::Config& c) { c.max_samples = 30; })) << "another mix";
  EXPECT_NE(printed_.find("data set 1: rows: was '70', is '30'"), std::string::npos) << printed_;
  encoder_.words = "others";
  EXPECT_TRUE(made([](config::Config&) {})) << "another encoder";
  EXPECT_NE(printed_.find("words: was 'numbers', is 'others'"), std::string::npos) << printed_;
  // What is evaluated is kept as well, beside it.
  write("other.txt", 200, 208);
  const auto evaluates = [&](config::Config& c) { c.eval_dataset = {folder_ / "other.txt"}; };
  EXPECT_TRUE(made(evaluates));
  EXPECT_FALSE(made(evaluates));
  EXPECT_NE(printed_.find("evaluation data: tokens taken from"), std::string::npos);
}

TEST_F(WhatIsTrained, RowsThatMayNotBeCutEndTheRunKeptOrNot) {
  write("long.txt", 998, 1003);
  config_.dataset = {folder_ / "long.txt"};
  config_.tokenized_path = folder_ / "tokens";
  EXPECT_EQ(corpus(config_).training.counts.truncated, 3);
  config_.truncation = "error";
  for (const bool kept : {true, false}) {
    config_.overwrite_cache = !kept;
    EXPECT_NE(said([&] { corpus(config_); }).find("3 of 5 rows with more"), std::string::npos) << kept;
  }
}

// ---- places in samples ----

TEST_F(WhatIsTrained, ARunGoesOnAtItsPlaceInTheSamples) {
  const Corpus corpus = this->corpus(config_);
  const auto whole = feed(config_, corpus);
  EXPECT_EQ(whole->examples(), kKept);
  EXPECT_EQ(whole->steps_per_epoch(), 15);
  EXPECT_EQ(whole->fingerprint(), corpus.training.fingerprint());
  EXPECT_EQ(whole->steps_until_end_of(20), 20);
  EXPECT_DOUBLE_EQ(whole->epochs(20), 1 + 5.0 / 15);
  EXPECT_EQ(whole->shape().tokens, 2 * 6);
  EXPECT_EQ(whole->shape().longest, 6);
  EXPECT_EQ(whole->shape().documents, 2);
  whole->start(deal());
  EXPECT_EQ(whole->step().samples, 0) << "nothing is behind";
  EXPECT_FALSE(whole->step().ends_epoch);
  const std::vector<int> first = steps(*whole, 4);
  const Json place = state(*whole, batch_);
  EXPECT_EQ(place["place"]["kind"], "samples");
  EXPECT_EQ(place["place"]["epoch"], 0);
  EXPECT_EQ(place["place"]["item"], 16);
  const std::vector<int> rest = steps(*whole, 11);
  EXPECT_TRUE(whole->step().ends_epoch);
  EXPECT_EQ(whole->step().samples, 4);
  EXPECT_DOUBLE_EQ(whole->step().epoch, 1);
  EXPECT_EQ(whole->position()["epoch"], 1);
  EXPECT_EQ(whole->position()["item"], 0);
  std::set<int> seen(first.begin(), first.end());
  seen.insert(rest.begin(), rest.end());
  EXPECT_EQ(seen.size(), static_cast<std::size_t>(kKept));

  const auto again = feed(config_, corpus);
  again->go_on(4, place, "c");
  EXPECT_EQ(again->position(), place["place"]);
  EXPECT_EQ(again->step().samples, 0) << "this run has trained none";
  EXPECT_DOUBLE_EQ(again->step().epoch, 4.0 / 15);
  EXPECT_EQ(again->steps_until_end_of(20), 20);
  again->start(deal());
  EXPECT_EQ(steps(*again, 11), rest);
  EXPECT_TRUE(again->step().ends_epoch);
  // In the second epoch, and with a step of another size.
  const std::vector<int> second = steps(*again, 2);
  batch_ = {.micro = 1, .accumulation = 2, .world = 1, .global = 2};
  const auto small = feed(config_, corpus);
  small->go_on(17, state(*again, {.global = 4}), "c");
  EXPECT_EQ(small->position()["epoch"], 1);
  EXPECT_EQ(small->position()["item"], 8);
  EXPECT_EQ(small->steps_until_end_of(60), 17 + 26) << "two epochs: 52 samples are left of them";
  small->start(deal());
  const std::vector<int> next = steps(*small, 26);
  std::set<int> once(second.begin(), second.end());
  once.insert(next.begin(), next.end());
  EXPECT_EQ(once.size(), static_cast<std::size_t>(kKept));
}

TEST_F(WhatIsTrained, TokensOfAStepAreThoseOfItsSamples) {
  const Corpus corpus = this->corpus(config_);
  const auto feed = this->feed(config_, corpus);
  feed->start(deal());
  for (int step = 0; step < 3; ++step) {
    std::int64_t tokens = 0;
    for (int a = 0; a < 2; ++a) {
      tokens += feed->next(a == 0, nullptr).tokens();
      EXPECT_EQ(feed->position()["item"], 4 * (step + 1)) << "behind the step under way";
    }
    EXPECT_EQ(feed->step().tokens, tokens);
    EXPECT_EQ(feed->step().samples, 4);
  }
}

TEST_F(WhatIsTrained, WithinAnEpochTheOrderMustBeTheSame) {
  const Corpus corpus = this->corpus(config_);
  const auto feed = this->feed(config_, corpus);
  feed->start(deal());
  steps(*feed, 3);
  const Json within = state(*feed, batch_);
  Json at_its_end = within;
  at_its_end["place"]["item"] = 0;
  struct Row {
    Change change;
    bool refused;
  };
  using C = config::Config;
  for (const auto& [change, refused] :
       {Row{[](C&) {}, false}, Row{[](C& c) { c.seed = 7; }, true}, Row{[](C& c) { c.data_seed = 7; }, true},
        Row{[](C& c) { c.disable_shuffling = true; }, true}, Row{[](C& c) { c.packing = true; }, true},
        Row{[](C& c) { c.packing = true, c.packing_strategy = "llamafactory"; }, true},
        Row{[](C& c) { c.max_samples = 35; }, false}}) {
    C config = config_;
    change(config);
    EXPECT_EQ(going_on(config, within).find("'disable_shuffling'") != std::string::npos, refused);
    EXPECT_EQ(going_on(config, at_its_end), "") << "a new epoch may have another order";
  }
}

TEST_F(WhatIsTrained, TheOrderOfSamplesIsTheirDocumentsAndWhereTheyEnd) {
  const auto order = [&](const std::vector<std::int64_t>& documents, const std::vector<std::int64_t>& ends) {
    Corpus corpus;
    for (std::int32_t d = 0; d < 4; ++d) corpus.training.append(std::vector{d, d}, std::vector{d, d}, d);
    for (const std::int64_t d : documents) corpus.training_items.documents.push_back(d);
    for (const std::int64_t end : ends) corpus.training_items.begins.push_back(end);
    return feed(config_, corpus)->position()["order"].get<std::string>();
  };
  const std::set<std::string> orders{order({0, 1, 2, 3}, {2, 4}), order({0, 2, 1, 3}, {2, 4}),
                                     order({0, 1, 2, 3}, {3, 4}), order({0, 1, 2, 3}, {1, 2, 3, 4}),
                                     order({0, 1, 3, 2}, {1, 2, 3, 4})};
  EXPECT_EQ(orders.size(), 5u);
}

TEST_F(WhatIsTrained, ACheckpointWithoutAPlaceTellsTheSizeOfItsSteps) {
  const Corpus corpus = this->corpus(config_);
  const auto place = [&](const Json& state) {
    const auto feed = this->feed(config_, corpus);
    feed->go_on(16, state, "c");
    return std::pair(feed->position()["epoch"].get<int>(), feed->position()["item"].get<int>());
  };
  EXPECT_EQ(place(Json::object()), std::pair(1, 4));
  EXPECT_EQ(place({{"global_batch", 6}}), std::pair(1, 36)) << "ten steps an epoch";
  EXPECT_EQ(place({{"global_batch", 1}}), std::pair(0, 16));
  EXPECT_THROW(place({{"global_batch", 0}}), Error);
}

TEST_F(WhatIsTrained, PlacesThatAreNoneAreRefused) {
  for (const bool streaming : {false, true}) {
    config_.streaming = streaming;
    const Corpus corpus = this->corpus(config_);
    const Json good = feed(config_, corpus)->position();
    EXPECT_EQ(good["kind"], streaming ? "rows" : "samples");
    EXPECT_EQ(going_on(config_, {{"place", good}}), "");
    for (const auto& [key, value] : good.items()) {
      if (!value.is_number()) continue;
      for (const Json& wrong : {Json(-1), Json("x"), Json((INT64_C(1) << 40) + 1)}) {
        Json place = good;
        place[key] = wrong;
        EXPECT_NE(going_on(config_, {{"place", place}}), "") << key << " " << wrong;
      }
      Json none = good;
      none[key] = nullptr;
      EXPECT_NE(going_on(config_, {{"place", none}}), "") << key;
      none.erase(key);
      EXPECT_NE(going_on(config_, {{"place", none}}), "") << key;
    }
    for (const Json& other : {Json{{"kind", streaming ? "samples" : "rows"}}, Json(3), Json::object()}) {
      EXPECT_NE(going_on(config_, {{"place", other}}).find("'streaming'"), std::string::npos) << other;
    }
  }
  EXPECT_NE(going_on(config_, Json::object()).find("'streaming'"), std::string::npos)
      << "a stream is not found again by counting";
}

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
  // Other data are told of elsewhere.
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
  EXPECT_NE(said([&] { samples(true, "auto"); }).find("dataloader_drop_last leaves nothing"),
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

// ---- micro-batches ----

// Items of one, three and two documents, of which the second and third share their context or do not.
TEST(Batches, HoldDocumentsWithTheirRowsPositionsAndTargets) {
  data::Encoded set;
  const auto add = [&set](std::vector<std::int32_t> ids, std::vector<std::int32_t> labels, std::int64_t row) {
    set.append(ids, labels, row);
  };
  add({10, 11}, {-100, 11}, 5);
  add({20, 21, 22}, {20, -100, 22}, 6);
  add({30}, {30}, 7);
  add({40, 41}, {-100, 41}, 8);
  data::Items items;
  for (const std::int64_t d : {1, 2, 0, 3}) items.documents.push_back(d);
  for (const std::int64_t end : {3, 4}) items.begins.push_back(end);
  const runtime::HostBatch apart = make_batch(set, items, std::vector<std::int64_t>{0, -1, 1});
  EXPECT_EQ(apart.ids, (std::vector<std::int32_t>{20, 21, 22, 30, 10, 11, 40, 41}));
  EXPECT_EQ(apart.cu_seqlens, (std::vector<std::int32_t>{0, 3, 4, 6, 8}));
  EXPECT_EQ(apart.positions, (std::vector<std::int32_t>{0, 1, 2, 0, 0, 1, 0, 1}));
  EXPECT_EQ(apart.label_rows, (std::vector<std::int32_t>{1, 4, 6}));
  EXPECT_EQ(apart.targets, (std::vector<std::int32_t>{22, 11, 41}));
  EXPECT_EQ(apart.rows, (std::vector<std::int64_t>{6, 7, 5, 8}));
  EXPECT_EQ(apart.items, 2);
  EXPECT_EQ(apart.max_length, 3);
  items.shared_context = true;
  const runtime::HostBatch shared = make_batch(set, items, std::vector<std::int64_t>{0, 1});
  EXPECT_EQ(shared.ids, apart.ids);
  EXPECT_EQ(shared.cu_seqlens, (std::vector<std::int32_t>{0, 6, 8}));
  EXPECT_EQ(shared.positions, apart.positions);
  EXPECT_EQ(shared.label_rows, (std::vector<std::int32_t>{1, 2, 4, 6}))
      << "the first token of 30, not that of 10";
  EXPECT_EQ(shared.targets, (std::vector<std::int32_t>{22, 30, 11, 41}));
  EXPECT_EQ(shared.max_length, 6);
  EXPECT_EQ(make_batch(set, items, std::vector<std::int64_t>{1}).max_length, 2);
  // A token has one name, wherever its document comes.
  const runtime::HostBatch alone = make_batch(set, items, std::vector<std::int64_t>{1});
  EXPECT_EQ(alone.names, (std::vector<std::uint64_t>(apart.names.end() - 2, apart.names.end())));
  std::set<std::uint64_t> names(apart.names.begin(), apart.names.end());
  EXPECT_EQ(names.size(), 8u);
}

// Two documents of one row have other names, as have those of two rows with one number in their sets.
TEST(Batches, NamesTellRowAndDocument) {
  data::Encoded one, other;
  const std::vector<std::int32_t> ids{1, 2};
  for (const std::int64_t row : {3, 3, 4}) one.append(ids, ids, row);
  for (const std::int64_t row : {4, 3, 4}) other.append(ids, ids, row);
  std::set<std::uint64_t> names;
  const auto add = [&](const data::Encoded& set, std::int64_t d) {
    names.insert(make_batch(set, data::one_each(set), std::vector<std::int64_t>{d}).names[0]);
  };
  add(one, 0), add(one, 1), add(one, 2), add(other, 0);
  EXPECT_EQ(names.size(), 4u);
  add(other, 1), add(other, 2);
  EXPECT_EQ(names.size(), 4u) << "the same rows at the same places";
}

}  // namespace
}  // namespace octet::feed
