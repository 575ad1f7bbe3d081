// The training and evaluation samples of a run, and the sample from which it resumes: corpora, feeds and
// positions, key by key.
#include "octet/feed/corpus.h"
#include "octet/config/config.h"

#include <algorithm>
#include <set>

#include "octet/base/json.h"
#include "what_is_trained.h"

namespace octet::feed::corpus_test {
namespace {

namespace fs = std::filesystem;

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
        EXPECT_NE(said([&] { corpus(config_); }).find("val_size leaves no rows for training"),
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
    EXPECT_NE(said([&] { corpus(config_); }).find("the evaluation data set has no tokens to train"),
              std::string::npos);
  }
}

TEST_F(WhatIsTrained, NothingToTrainOnIsSaidWithWhatBecameOfTheRows) {
  write("six.txt", 6, 7);
  config_.dataset = {folder_ / "six.txt"};
  const std::string text = said([&] { corpus(config_); });
  EXPECT_NE(text.find("the data set has no tokens to train"), std::string::npos) << text;
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
                .empty_answers = 7,
                .notes = {{"a message field 'name'", 8}, {"a column 'documents'", 9}},
                .reasons = {"a:1: b", "c:2: d"}};
  EXPECT_EQ(said([&] { report_counts(set, "the set"); }),
            "the set: 4,000 documents of 5,000 rows, 1,234,567 tokens, 7,654 of them trained\n"
            "warning: the set: 1,001 rows were left out because they cannot be read\n"
            "warning: the set: 2 rows were left out because they are not usable\n"
            "warning:   a:1: b\n"
            "warning:   c:2: d\n"
            "warning: the set: 3 rows were left out because the template gives nothing for them\n"
            "warning: the set: 4 rows were left out because they have no trained token\n"
            "warning: the set: 5 rows were cut to cutoff_len (texts: to pack_factor times that)\n"
            "warning: the set: 6 rows lost the end of an answer: the model does not learn to stop there\n"
            "warning: the set: 7 of 5,000 rows have an empty answer or text, and train the model to say "
            "nothing; leave these rows out, or check the columns of the data set\n"
            "warning: the set: 9 rows have a column 'documents', which is not read\n"
            "warning: the set: 8 rows have a message field 'name', which is not read\n");
  set.counts = {.rows = 1, .documents = 1};
  EXPECT_EQ(said([&] { report_counts(set, "x"); }),
            "x: 1 documents of 1 rows, 0 tokens, 0 of them trained\n");
}

TEST_F(WhatIsTrained, ColumnsThatAreReadAndThatAreNotAreLoggedAtTheStart) {
  test::spill(folder_ / "rows.jsonl", R"({"text":"5","source":"here","score":3})"
                                      "\n");
  config_.dataset = {folder_ / "rows.jsonl"};
  const std::string text = said([&] { corpus(config_); });
  EXPECT_NE(text.find("rows.jsonl: columns read: text; columns with texts that are not read: source\n"),
            std::string::npos)
      << text;
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
  // The evaluation samples are cached as well.
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
  batch_ = {.micro = 1, .accumulation = 2, .world = 1, .global = 2, .passes = 2};
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

}  // namespace
}  // namespace octet::feed::corpus_test
