// Feeds alone: messages on the data, and the position from which a feed resumes.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/config/config.h"
#include "octet/data/encoded.h"
#include "octet/feed/feed.h"
#include "octet/setup/run_options.h"
#include "support/temporary_folder.h"

namespace octet::feed::feeds_test {
namespace {

/// One document a row: the row's number, three to six times.
class NumberedRows : public data::Encoder {
 public:
  data::EncodedSample encode(const data::Sample& sample) const override {
    const int number = std::stoi(sample.text);
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(3 + number % 4), number);
    data::EncodedSample out;
    out.documents.push_back({ids, ids});
    return out;
  }
  std::string decode(std::span<const std::int32_t>) const override { return ""; }
};

class Feeds : public testing::Test {
 protected:
  Feeds() : session_(DeviceWish::cpu) {
    config_.disable_shuffling = true;
    config_.cutoff_len = 16;
  }
  /// Eleven documents.
  Corpus documents() const {
    Corpus corpus;
    for (int i = 0; i < 11; ++i) {
      const std::vector<std::int32_t> ids(static_cast<std::size_t>(3 + i % 4), i);
      corpus.training.append(ids, ids, i);
    }
    corpus.training_items = data::one_each(corpus.training);
    corpus.fingerprint = "these";
    return corpus;
  }
  std::unique_ptr<Feed> feed(const Corpus& corpus) {
    return make_feed(session_, config_, setup::is_strict(config_), batch_, encoder_, corpus);
  }
  /// Takes the micro-batches of rank 0 of so many steps.
  void take(Feed& feed, int steps) const {
    feed.start({.micro = batch_.micro,
                .accumulation = batch_.accumulation,
                .rank = 0,
                .world = static_cast<int>(batch_.world)});
    for (int i = 0; i < steps; ++i) {
      for (std::int64_t a = 0; a < batch_.accumulation; ++a) feed.next(a == 0, nullptr);
    }
  }
  static std::string refusal(Feed& feed, const Json& state) {
    try {
      feed.go_on(1, state, "checkpoint-1");
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      return error.what();
    }
    return "";
  }

  runtime::Session session_;
  config::Config config_;
  config::Batch batch_{.micro = 2, .accumulation = 2, .world = 1, .global = 4, .passes = 2};
  NumberedRows encoder_;
};

void expect_says(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
}

TEST_F(Feeds, TellTheirStepsAndWhatTheyHold) {
  const Corpus corpus = documents();
  const auto all = feed(corpus);
  EXPECT_EQ(all->examples(), 11);
  EXPECT_EQ(all->steps_per_epoch(), 3);
  EXPECT_EQ(all->shape().tokens, 2 * 6);
  EXPECT_EQ(all->shape().longest, 6);
  EXPECT_EQ(all->shape().documents, 2);
  EXPECT_DOUBLE_EQ(all->epochs(1), 2.0 / 6) << "two of six micro-batches, of which the last is smaller";
  EXPECT_DOUBLE_EQ(all->epochs(3), 1);
  take(*all, 2);
  EXPECT_EQ(all->step().samples, 4);
  EXPECT_EQ(all->step().tokens, 3 + 4 + 5 + 6);
  EXPECT_FALSE(all->step().ends_epoch);
  const auto third = feed(corpus);
  take(*third, 3);
  EXPECT_EQ(third->step().samples, 3);
  EXPECT_EQ(third->step().tokens, 3 + 4 + 5);
  EXPECT_TRUE(third->step().ends_epoch);
  EXPECT_DOUBLE_EQ(third->step().epoch, 1);
}

TEST_F(Feeds, OfPackedItemsHoldTheDocumentsOfAll) {
  Corpus corpus = documents();
  corpus.training_items = data::pack_best_fit(corpus.training, 16);
  const auto packed = feed(corpus);
  EXPECT_GE(corpus.training_items.most_documents(), 3);
  EXPECT_EQ(packed->shape().documents, 2 * corpus.training_items.most_documents());
  EXPECT_EQ(packed->shape().tokens, 2 * corpus.training_items.longest(corpus.training));
  EXPECT_EQ(packed->shape().longest, 6) << "documents do not see each other";
}

// Micro-batches of all ranks are whole. With bits that do not depend on the number of ranks, the
// micro-batches of one rank are whole.
TEST_F(Feeds, WhatFillsNoGroupIsLeftOut) {
  const Corpus corpus = documents();
  batch_ = {.micro = 2, .accumulation = 1, .world = 2, .global = 4};
  const auto samples_of_third = [&] {
    const auto all = feed(corpus);
    take(*all, 3);
    return all->step().samples;
  };
  EXPECT_EQ(samples_of_third(), 3);
  config_.dataloader_drop_last = true;
  EXPECT_EQ(feed(corpus)->steps_per_epoch(), 2);
  config_.deterministic = "strict";
  EXPECT_EQ(feed(corpus)->steps_per_epoch(), 3);
  EXPECT_EQ(samples_of_third(), 2);
}

TEST_F(Feeds, GoOnAtTheirPlace) {
  const Corpus corpus = documents();
  const auto before = feed(corpus);
  take(*before, 1);
  Json state{{"place", before->position()}, {"global_batch", 4}, {"data_fingerprint", "these"}};
  EXPECT_EQ(state["place"]["item"], 4);
  batch_ = {.micro = 2, .accumulation = 1, .world = 1, .global = 2};
  const auto smaller = feed(corpus);
  EXPECT_EQ(refusal(*smaller, state), "");
  EXPECT_EQ(smaller->position()["item"], 4) << "in samples, whatever the steps";
  EXPECT_EQ(smaller->step().samples, 0);
  take(*smaller, 1);
  EXPECT_EQ(smaller->position()["item"], 6);
  // One of a run that wrote no place had steps of one size.
  Json old = state;
  old.erase("place");
  const auto from_old = feed(corpus);
  EXPECT_EQ(refusal(*from_old, old), "");
  EXPECT_EQ(from_old->position()["item"], 4);
}

TEST_F(Feeds, AnotherOrderIsRefusedWithinAnEpochOfTheSameData) {
  const Corpus corpus = documents();
  config_.disable_shuffling = false;
  const auto before = feed(corpus);
  take(*before, 1);
  Json state{{"place", before->position()}, {"data_fingerprint", "these"}};
  EXPECT_EQ(refusal(*feed(corpus), state), "");
  config_.seed += 1;
  expect_says(refusal(*feed(corpus), state), "its samples would now have another order");
  Json others = state;
  others["data_fingerprint"] = "others";
  EXPECT_EQ(refusal(*feed(corpus), others), "") << "which the run says";
  Json end = state;
  end["place"]["item"] = 0;
  EXPECT_EQ(refusal(*feed(corpus), end), "") << "between two epochs";
  Json rows = state;
  rows["place"]["kind"] = "rows";
  expect_says(refusal(*feed(corpus), rows), "resume with streaming: true");
}

/// Thirty rows in windows of ten.
class StreamedFeeds : public Feeds {
 protected:
  StreamedFeeds() {
    std::ofstream file(folder_ + "/rows.txt");
    for (int i = 0; i < 30; ++i) file << i << "\n";
    file.close();
    corpus_.rows = std::make_shared<const data::RowMix>(
        data::open_datasets({.dataset = {folder_ + "/rows.txt"}}), data::MixOptions{});
    corpus_.fingerprint = "these";
    config_.streaming = true;
    config_.buffer_size = 10;
  }
  octet::test::TemporaryFolder scratch_{"feeds"};
  const std::string& folder_ = scratch_.path();
  Corpus corpus_;
};

TEST_F(StreamedFeeds, TellWhatMayComeAndWhatCame) {
  const auto rows = feed(corpus_);
  EXPECT_EQ(rows->examples(), 30);
  EXPECT_EQ(rows->shape().tokens, 2 * 16);
  EXPECT_EQ(rows->shape().documents, 2);
  EXPECT_DOUBLE_EQ(rows->epochs(6), 24.0 / 30);
  take(*rows, 3);
  EXPECT_EQ(rows->step().samples, 4);
  EXPECT_EQ(rows->step().tokens, 3 + 4 + 5 + 6);
  EXPECT_EQ(rows->position()["window"], 1);
  EXPECT_EQ(rows->position()["item"], 2);
  EXPECT_DOUBLE_EQ(rows->step().epoch, 12.0 / 30);
  config_.packing = true;
  EXPECT_EQ(feed(corpus_)->shape().documents, 2 * 8) << "of two tokens each";
}

TEST_F(StreamedFeeds, RowsThatAreHeldOutAreNotTrained) {
  for (const std::int64_t row : {0, 1, 5}) {
    const auto place = corpus_.rows->at(row);
    corpus_.held_out.emplace(place.file, place.row);
  }
  const auto rows = feed(corpus_);
  take(*rows, 1);
  EXPECT_EQ(rows->step().tokens, 5 + 6 + 3 + 5) << "rows 2, 3, 4 and 6";
}

// Batches of rows that are packed by themselves are not cut.
TEST_F(StreamedFeeds, WindowsHoldWholeBatchesOfPacking) {
  config_.packing = true;
  config_.packing_strategy = "llamafactory";
  config_.preprocessing_batch_size = 8;
  const auto window = [&](std::int64_t buffer) {
    config_.buffer_size = buffer;
    return feed(corpus_)->position()["window_rows"].get<std::int64_t>();
  };
  EXPECT_EQ(window(10), 8);
  EXPECT_EQ(window(16), 16);
  EXPECT_EQ(window(23), 16);
  EXPECT_EQ(window(3), 8);
  config_.packing_strategy = "best_fit";
  EXPECT_EQ(window(10), 10);
}

TEST_F(StreamedFeeds, GoOnInTheirStreamAlone) {
  const auto before = feed(corpus_);
  take(*before, 3);
  const Json state{{"place", before->position()}, {"data_fingerprint", "these"}};
  const auto again = feed(corpus_);
  EXPECT_EQ(refusal(*again, state), "");
  EXPECT_EQ(again->position(), before->position());
  const auto with = [&](const char* key, const Json& value) {
    Json other = state;
    other["place"][key] = value;
    return refusal(*feed(corpus_), other);
  };
  expect_says(with("window", 3), "window 4 of 3, windows of 10 rows then and of 10 now");
  expect_says(with("window_rows", 9), "window 2 of 3, windows of 9 rows then and of 10 now");
  expect_says(with("kind", "samples"), "resume with streaming: false");
  expect_says(with("item", -1), "the place in the data");
  expect_says(refusal(*feed(corpus_), Json{{"data_fingerprint", "these"}}), "has no place in the stream");
  expect_says(with("order", "another"), "another order");
  // What decides which sample is the n-th of a window.
  config_.cutoff_len = 20;
  expect_says(refusal(*feed(corpus_), state), "another order");
  config_.cutoff_len = 16;
  config_.packing = true;
  expect_says(refusal(*feed(corpus_), state), "another order");
  Json begin = state;
  begin["place"]["window"] = begin["place"]["item"] = 0;
  EXPECT_EQ(refusal(*feed(corpus_), begin), "");
}

// Rows that cannot be read are counted over an epoch, not over a window.
TEST_F(StreamedFeeds, TooManyRowsThatCannotBeReadEndTheRun) {
  std::ofstream file(folder_ + "/rows.jsonl");
  for (int i = 0; i < 30; ++i)
    file << (i == 3 || i == 13 ? "{" : "{\"text\": \"" + std::to_string(i) + "\"}") << "\n";
  file.close();
  corpus_.rows = std::make_shared<const data::RowMix>(
      data::open_datasets({.dataset = {folder_ + "/rows.jsonl"}}), data::MixOptions{});
  config_.max_broken_rows = 2;
  take(*feed(corpus_), 9);
  config_.max_broken_rows = 1;
  const auto rows = feed(corpus_);
  take(*rows, 2);
  try {
    take(*rows, 5);
    ADD_FAILURE() << "two were read";
  } catch (const Error& error) {
    expect_says(error.what(), "rows.jsonl:4");
    expect_says(error.what(), "rows.jsonl:14");
  }
}

TEST_F(StreamedFeeds, RowsThatMayNotBeCutEndTheRun) {
  class Cutting final : public NumberedRows {
    data::EncodedSample encode(const data::Sample& sample) const override {
      data::EncodedSample out = NumberedRows::encode(sample);
      out.truncated = sample.text == "12";
      return out;
    }
  };
  const Cutting cutting;
  take(*make_feed(session_, config_, setup::is_strict(config_), batch_, cutting, corpus_), 9);
  config_.truncation = "error";
  const auto rows = make_feed(session_, config_, setup::is_strict(config_), batch_, cutting, corpus_);
  take(*rows, 1);
  try {
    take(*rows, 5);
    ADD_FAILURE() << "a row was cut";
  } catch (const Error& error) {
    expect_says(error.what(), "rows of the data are too long");
    expect_says(error.what(), "at most 16 tokens");
  }
}

// Nothing is left of the epoch that it began in: that is no epoch without data.
TEST_F(StreamedFeeds, ARunThatGoesOnAtTheEndOfAnEpochTakesTheNext) {
  const auto before = feed(corpus_);
  take(*before, 1);
  Json state{{"place", before->position()}};
  state["place"]["window"] = 2, state["place"]["item"] = 10;
  const auto again = feed(corpus_);
  EXPECT_EQ(refusal(*again, state), "");
  take(*again, 1);
  EXPECT_EQ(again->position()["epoch"], 1);
  EXPECT_EQ(again->step().tokens, 3 + 4 + 5 + 6);
}

// The last token of a document predicts the first of the next document, if that token is trained.
TEST(AddItem, OfSharedContextIsOneDocument) {
  data::Encoded set;
  using Ids = std::vector<std::int32_t>;
  set.append(Ids{5, 6}, Ids{5, 6}, 0);
  set.append(Ids{7, 8}, Ids{-100, 8}, 1);
  set.append(Ids{9, 1}, Ids{9, 1}, 2);
  data::Items items;
  for (const std::int64_t d : {0, 1, 2}) items.documents.push_back(d);
  items.begins.push_back(3);
  items.shared_context = true;
  const std::int64_t all[] = {0};
  const runtime::HostBatch shared = make_batch(set, items, all);
  EXPECT_EQ(shared.cu_seqlens, (Ids{0, 6}));
  EXPECT_EQ(shared.max_length, 6);
  EXPECT_EQ(shared.label_rows, (Ids{0, 2, 3, 4}));
  EXPECT_EQ(shared.targets, (Ids{6, 8, 9, 1}));
  items.shared_context = false;
  const runtime::HostBatch apart = make_batch(set, items, all);
  EXPECT_EQ(apart.cu_seqlens, (Ids{0, 2, 4, 6}));
  EXPECT_EQ(apart.label_rows, (Ids{0, 2, 4}));
  // The tokens of a document draw the same noise at any position.
  data::Items transposed;
  for (const std::int64_t d : {2, 1}) transposed.documents.push_back(d);
  transposed.begins.push_back(2);
  const runtime::HostBatch other = make_batch(set, transposed, all);
  EXPECT_TRUE(std::equal(other.names.begin(), other.names.begin() + 2, apart.names.begin() + 4));
  EXPECT_TRUE(std::equal(other.names.begin() + 2, other.names.end(), apart.names.begin() + 2));
}

/// The same rows, as a run opens them.
class Corpora : public StreamedFeeds {
 protected:
  Corpora() {
    config_.dataset = {folder_ + "/rows.txt"};
    config_.streaming = false;
  }
  Corpus build() { return build_corpus(session_, config_, encoder_); }
  std::string said(const std::function<void()>& call) {
    testing::internal::CaptureStderr();
    std::string error;
    try {
      call();
    } catch (const Error& e) {
      error = e.what();
    }
    return testing::internal::GetCapturedStderr() + error;
  }
};

TEST_F(Corpora, HoldOutAShareOrACountOfTheirRows) {
  for (const bool streaming : {false, true}) {
    config_.streaming = streaming;
    const auto held = [&](double size) {
      config_.val_size = size;
      const Corpus corpus = build();
      if (streaming) {
        EXPECT_EQ(std::ssize(corpus.held_out), corpus.evaluation.documents());
      } else {
        EXPECT_EQ(corpus.training.documents(), 30 - corpus.evaluation.documents());
      }
      return corpus.evaluation.documents();
    };
    EXPECT_EQ(held(0.1), 3);
    EXPECT_EQ(held(0.11), 4) << "rounded up";
    EXPECT_EQ(held(1), 1) << "a row";
    EXPECT_EQ(held(29), 29);
    config_.val_size = 30;
    const std::string refused = said([&] { build(); });
    expect_says(refused, "val_size leaves no rows for training\n  expected: fewer than the 30 rows");
    // Which they are the seed decides.
    config_.val_size = 3;
    const Corpus one = build();
    config_.seed += 1;
    const Corpus other = build();
    EXPECT_NE(std::vector(one.evaluation.ids.span().begin(), one.evaluation.ids.span().end()),
              std::vector(other.evaluation.ids.span().begin(), other.evaluation.ids.span().end()));
  }
}

TEST_F(Corpora, OfAStreamAreNamedByWhatDecidesThem) {
  config_.streaming = true;
  const std::string before = build().fingerprint;
  EXPECT_EQ(build().fingerprint, before);
  config_.buffer_size = 11;
  EXPECT_NE(build().fingerprint, before);
}

TEST_F(Corpora, ThatAreNotThereNameTheKey) {
  config_.eval_dataset = {folder_ + "/none.txt"};
  expect_says(said([&] { build(); }), "eval_dataset");
}

TEST_F(Corpora, SayHowFullTheirSequencesAreAndWhatWasLeftOut) {
  Corpus corpus = documents();
  corpus.training_items = data::pack_best_fit(corpus.training, 16);
  config_.packing = true;
  // 48 tokens in 4 times 16.
  EXPECT_EQ(corpus.training_items.size(), 4);
  EXPECT_EQ(said([&] { report_packing(corpus.training, corpus.training_items, config_); }),
            "packing: 11 documents in 4 sequences, 75.00 % full\n");
  config_.packing = false;
  EXPECT_EQ(said([&] { report_packing(corpus.training, corpus.training_items, config_); }), "");
  data::Encoded set;
  set.counts = {.rows = 20, .documents = 10, .tokens = 5000, .trained = 2500, .invalid = 2, .dropped = 3};
  set.counts.unlabelled = 4, set.counts.broken = 1;
  set.counts.truncated = 6, set.counts.cut_answers = 5, set.counts.reasons = {"line 3: no text"};
  EXPECT_EQ(said([&] { report_counts(set, "data"); }),
            "data: 10 documents of 20 rows, 5,000 tokens, 2,500 of them trained\n"
            "warning: data: 1 rows were left out because they cannot be read\n"
            "warning: data: 2 rows were left out because they are not usable\n"
            "warning:   line 3: no text\n"
            "warning: data: 3 rows were left out because the template gives nothing for them\n"
            "warning: data: 4 rows were left out because they have no trained token\n"
            "warning: data: 6 rows were cut to cutoff_len (texts: to pack_factor times that)\n"
            "warning: data: 5 rows lost the end of an answer: the model does not learn to stop there\n");
}

/// Each token a letter.
class Letters : public NumberedRows {
 public:
  std::string decode(std::span<const std::int32_t> ids) const override {
    std::string text;
    for (const std::int32_t id : ids) text += static_cast<char>('a' + id % 26);
    return text;
  }
};

TEST(ShowExample, MarksWhatIsTrainedAndEndsInTime) {
  const Letters letters;
  data::Encoded set;
  EXPECT_EQ(show_example(set, letters, false), "");
  set.append(std::vector<std::int32_t>{0, 1, 2, 3, 4}, std::vector<std::int32_t>{-100, 1, 2, -100, 4}, 0);
  EXPECT_EQ(show_example(set, letters, false),
            "first example (trained in [[ ]]):\na[[bc]]d[[e]]\ninput_ids: [0, 1, 2, 3, 4]");
  EXPECT_EQ(
      show_example(set, letters, true),
      "first example (trained green):\na\033[32mbc\033[0md\033[32me\033[0m\ninput_ids: [0, 1, 2, 3, 4]");
  const auto long_one = [&](std::size_t length) {
    data::Encoded one;
    const std::vector<std::int32_t> ids(length, 7), labels(length, -100);
    one.append(ids, labels, 0);
    return show_example(one, letters, false);
  };
  const auto end = [](const std::string& text) { return text.substr(text.rfind(',') + 1); };
  EXPECT_EQ(end(long_one(64)), " 7]");
  EXPECT_EQ(end(long_one(65)), " …]");
  expect_says(long_one(512), ":\n" + std::string(512, 'h') + "\ninput_ids");
  expect_says(long_one(513), ":\n" + std::string(512, 'h') + "…\ninput_ids");
}

}  // namespace
}  // namespace octet::feed::feeds_test
