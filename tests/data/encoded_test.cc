#include "octet/data/encoded.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/data/encoder.h"
#include "support/encoded.h"
#include "support/temporary_folder.h"

namespace octet::data::encoded_test {
namespace {

TEST(Packing, FillsSequencesWithoutLosingOrSplittingADocument) {
  const Encoded set = test::set_of(200, 60);
  const Items packs = pack_best_fit(set, 64);
  std::set<std::int64_t> seen;
  for (std::int64_t i = 0; i < packs.size(); ++i) {
    std::int64_t tokens = 0;
    for (auto j = packs.begins[static_cast<std::size_t>(i)];
         j < packs.begins[static_cast<std::size_t>(i) + 1]; ++j) {
      tokens += set.length(packs.documents[static_cast<std::size_t>(j)]);
      EXPECT_TRUE(seen.insert(packs.documents[static_cast<std::size_t>(j)]).second);
    }
    EXPECT_LE(tokens, 64);
  }
  EXPECT_EQ(seen.size(), 200u);
  // Lower bound for every packing: the sequences that the tokens fill, and the documents longer than half a
  // sequence.
  std::int64_t halves = 0;
  for (std::int64_t d = 0; d < set.documents(); ++d) halves += set.length(d) > 32 ? 1 : 0;
  const std::int64_t least = std::max(halves, (static_cast<std::int64_t>(set.ids.size()) + 63) / 64);
  EXPECT_LE(packs.size(), least + least / 50);
  EXPECT_EQ(packs.longest(set), 64);
}

// The longest document comes first, and goes where it leaves the least room. Equal documents keep their
// order, and the oldest pack is preferred.
TEST(Packing, BestFitIsDecidedToTheLastDocument) {
  Encoded set;
  for (const std::size_t length : {3, 10, 5, 5, 7, 3, 2, 2, 4}) {
    const std::vector<std::int32_t> ids(length, 1);
    set.append(ids, ids, 0);
  }
  const Items packs = pack_best_fit(set, 10);
  // 10 | 7+3 | 5+5 | 4+3+2 | 2
  EXPECT_EQ(packs.documents, (LongArray<std::int64_t>{1, 4, 0, 2, 3, 8, 5, 6, 7}));
  EXPECT_EQ(packs.begins, (LongArray<std::int64_t>{0, 1, 3, 5, 8, 9}));
  EXPECT_EQ(packs.most_documents(), 3);
  EXPECT_EQ(packs.longest(set), 10);
  EXPECT_EQ(packs.tokens(set, 3), 9);
  EXPECT_EQ(packs.tokens(set, 4), 2) << "the last one";
  EXPECT_FALSE(packs.shared_context);
  EXPECT_EQ(set.longest(), 10);
  EXPECT_EQ(pack_best_fit(Encoded(), 10).size(), 0);
  EXPECT_EQ(Items().most_documents(), 1);
  EXPECT_ANY_THROW(pack_best_fit(set, 9)) << "a document is longer";
}

TEST(Packing, PacksWithAsMuchRoomAreFilledInTheirOrder) {
  Encoded set;
  for (const std::size_t length : {6, 6, 6, 4, 4, 4}) {
    const std::vector<std::int32_t> ids(length, 1);
    set.append(ids, ids, 0);
  }
  EXPECT_EQ(pack_best_fit(set, 10).documents, (LongArray<std::int64_t>{0, 3, 1, 4, 2, 5}));
}

TEST(Encoded, SurvivesAFileAndPartsAppend) {
  Encoded set = test::set_of(20, 9);
  set.counts.rows = 22, set.counts.reasons = {"file:3: no\nanswer"};
  const octet::test::TemporaryFolder folder("encoded");
  const std::string path = folder / "set";
  std::string small;
  write_file_atomically(path, set.parts(small));
  const auto file = std::make_shared<const MappedFile>(path);
  std::filesystem::remove(path);
  const Encoded back = Encoded::from_file(file, file->text());
  EXPECT_EQ(back.fingerprint(), set.fingerprint());
  EXPECT_EQ(back.rows, set.rows);
  EXPECT_EQ(back.counts.reasons, set.counts.reasons);
  Encoded two = back;
  two.append(back);
  EXPECT_EQ(two.documents(), 40);
  EXPECT_EQ(two.length(20), set.length(0));
  EXPECT_EQ(two.counts.rows, 44);
  for (const std::size_t cut : {std::size_t{4}, std::size_t{30}, file->text().size() - 3}) {
    EXPECT_THROW(Encoded::from_file(file, file->text().substr(0, cut)), Error) << cut;
  }
}

/// Returns eleven different counts, notes and some reasons. A new count must be added here, otherwise this
/// does not compile.
EncodingCounts numbered(std::int64_t from) {
  EncodingCounts counts;
  auto& [rows, documents, tokens, trained, invalid, dropped, unlabelled, truncated, cut_answers, broken,
         empty_answers, notes, reasons] = counts;
  for (std::int64_t* count : {&rows, &documents, &tokens, &trained, &invalid, &dropped, &unlabelled,
                              &truncated, &cut_answers, &broken, &empty_answers}) {
    *count = from++;
  }
  notes = {{"n", from++}, {"o", from++}};
  reasons = {"r" + std::to_string(from), "", "s\n" + std::to_string(from)};
  return counts;
}

std::vector<std::int64_t> numbers_of(const EncodingCounts& c) {
  return {c.rows,       c.documents, c.tokens,      c.trained, c.invalid,      c.dropped,
          c.unlabelled, c.truncated, c.cut_answers, c.broken,  c.empty_answers};
}

TEST(EncodingCounts, AreAddedAndKeptEachByItself) {
  EncodingCounts sum = numbered(100);
  sum.add(numbered(1000));
  std::vector<std::int64_t> expected;
  for (std::int64_t i = 0; i < 11; ++i) expected.push_back(1100 + 2 * i);
  EXPECT_EQ(numbers_of(sum), expected);
  EXPECT_EQ(sum.reasons, (std::vector<std::string>{"r113", "", "s\n113", "r1013", ""})) << "the first five";
  const EncodingCounts back = EncodingCounts::from_bytes(sum.to_bytes());
  EXPECT_EQ(numbers_of(back), expected);
  EXPECT_EQ(back.reasons, sum.reasons);
  EXPECT_EQ(sum.notes, (std::map<std::string, std::int64_t>{{"n", 1122}, {"o", 1124}}));
  EXPECT_EQ(back.notes, sum.notes);
  EXPECT_EQ(numbers_of(EncodingCounts::from_bytes(EncodingCounts().to_bytes())),
            std::vector<std::int64_t>(11, 0));
  const std::string bytes = numbered(1).to_bytes();
  for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
    // A valid text may end after the counts, or after a complete reason.
    const std::size_t behind = 12 * 8 + 2 * 17;  // the counts and two notes
    if (cut == behind || cut == behind + 8 + 3 || cut == behind + 8 + 3 + 8) continue;
    EXPECT_THROW(EncodingCounts::from_bytes(bytes.substr(0, cut)), Error) << cut;
  }
}

// Any part of a file may contradict the other parts.
TEST(Encoded, PartsThatDoNotFitEachOtherAreRefused) {
  const auto read = [](const std::function<void(Encoded&)>& spoil) {
    Encoded set = test::set_of(4, 3);
    spoil(set);
    const octet::test::TemporaryFolder folder("parts");
    const std::string path = folder / "set";
    std::string small;
    write_file_atomically(path, set.parts(small));
    const auto file = std::make_shared<const MappedFile>(path);
    std::filesystem::remove(path);
    return Encoded::from_file(file, file->text()).documents();
  };
  EXPECT_EQ(read([](Encoded&) {}), 4);
  EXPECT_THROW(read([](Encoded& e) { e.ids.push_back(1); }), Error);
  EXPECT_THROW(read([](Encoded& e) { e.labels.push_back(1); }), Error);
  EXPECT_THROW(read([](Encoded& e) { e.rows.push_back(1); }), Error);
  EXPECT_THROW(read([](Encoded& e) { e.begins.push_back(e.begins.back()); }), Error);
  EXPECT_THROW(read([](Encoded& e) { e.begins.writable().front() = 1; }), Error);
  EXPECT_THROW(read([](Encoded& e) { e.begins.writable()[1] = 5; }), Error)
      << "a document would end before it begins";
  EXPECT_THROW(read([](Encoded& e) { --e.begins.writable().back(); }), Error);
}

TEST(Encoded, TheFingerprintTellsTokensLabelsAndBoundaries) {
  const auto of = [](const std::vector<std::vector<std::int32_t>>& documents,
                     const std::vector<std::vector<std::int32_t>>& labels, std::int64_t first_row) {
    Encoded set;
    for (std::size_t d = 0; d < documents.size(); ++d)
      set.append(documents[d], labels[d], first_row + static_cast<std::int64_t>(d));
    return set.fingerprint();
  };
  const std::string base = of({{1, 2}, {3}}, {{-100, 2}, {3}}, 0);
  EXPECT_EQ(of({{1, 2}, {3}}, {{-100, 2}, {3}}, 7), base)
      << "where the rows stand in their files is no matter";
  EXPECT_NE(of({{1, 4}, {3}}, {{-100, 2}, {3}}, 0), base);
  EXPECT_NE(of({{1, 2}, {3}}, {{1, 2}, {3}}, 0), base);
  EXPECT_NE(of({{1}, {2, 3}}, {{-100}, {2, 3}}, 0), base);
  // The last document matters like the first.
  EXPECT_NE(of({{1, 2}, {4}}, {{-100, 2}, {3}}, 0), base);
  EXPECT_NE(of({{1, 2}, {3}}, {{-100, 2}, {4}}, 0), base);
  EXPECT_NE(of({{1, 2, 3}}, {{-100, 2, 3}}, 0), base);
}

TEST(HoldOut, SplitsByRowAndKeepsTheRest) {
  const Encoded set = test::set_of(30, 9);
  const auto [training, held] = hold_out(set, {.rows = 30, .count = 7, .seed = 3});
  EXPECT_EQ(held.documents(), 7);
  EXPECT_EQ(training.documents(), 23);
  std::set<std::int64_t> rows(training.rows.begin(), training.rows.end());
  for (const auto row : held.rows) EXPECT_FALSE(rows.contains(row));
  const auto rows_held = [&](const HoldOut& options) {
    const auto chosen = hold_out(set, options).second.rows;
    return std::vector<std::int64_t>(chosen.begin(), chosen.end());
  };
  EXPECT_NE(rows_held({.rows = 30, .count = 7, .seed = 4}), rows_held({.rows = 30, .count = 7, .seed = 3}));
  EXPECT_TRUE(rows_held({.rows = 30, .count = 0, .seed = 3}).empty());
}

// Tokens, labels and rows move with a document. The counts of all rows belong to the training set.
TEST(HoldOut, DocumentsKeepTheirTokensLabelsAndRows) {
  Encoded set;
  for (std::int32_t row = 0; row < 6; ++row) {
    for (std::int32_t part = 0; part < 1 + row % 2; ++part) {
      const std::vector<std::int32_t> ids{10 * row + part, 7, 8}, labels{-100, 10 * row + part, 100 + row};
      set.append(ids, labels, row);
    }
  }
  set.counts.rows = 6, set.counts.broken = 3;
  const auto [training, held] = hold_out(set, {.rows = 6, .count = 3, .seed = 1});
  EXPECT_EQ(training.documents() + held.documents(), 9);
  std::set<std::int64_t> rows;
  for (const Encoded* part : {&training, &held}) {
    for (std::int64_t d = 0; d < part->documents(); ++d) {
      const auto at = static_cast<std::size_t>(part->begins[static_cast<std::size_t>(d)]);
      const std::int64_t row = part->rows[static_cast<std::size_t>(d)];
      EXPECT_EQ(part->length(d), 3);
      EXPECT_EQ(part->ids[at] / 10, row);
      EXPECT_EQ(part->labels[at + 1], part->ids[at]);
      EXPECT_EQ(part->labels[at + 2], 100 + row);
      if (part == &held) rows.insert(row);
    }
  }
  EXPECT_EQ(rows.size(), 3u);
  EXPECT_EQ(training.counts.rows, 6);
  EXPECT_EQ(training.counts.broken, 3);
  EXPECT_EQ(held.counts.broken, 0);
  // Places 0 and 3 are the same row, and all rows are held out: the first place stays, and its copy is
  // dropped.
  Encoded twice;
  for (std::int64_t place = 0; place < 4; ++place)
    twice.append(set.ids.span().first(2), set.labels.span().first(2), place);
  const auto all = hold_out(twice, {.rows = 3, .count = 3, .seed = 1, .distinct = {0, 1, 2, 0}});
  EXPECT_EQ(all.first.documents(), 0);
  EXPECT_EQ(all.second.rows, (LongArray<std::int64_t>{0, 1, 2}));
}

}  // namespace
}  // namespace octet::data::encoded_test
