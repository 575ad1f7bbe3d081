#include "octet/data/encoded.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <string>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/data/encode.h"
#include "octet/data/packing.h"
#include "support/encoded.h"

namespace octet::data {
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
  // No packing can need fewer sequences than the tokens fill, or than there are documents of over half a
  // sequence.
  std::int64_t halves = 0;
  for (std::int64_t d = 0; d < set.documents(); ++d) halves += set.length(d) > 32 ? 1 : 0;
  const std::int64_t least = std::max(halves, (static_cast<std::int64_t>(set.ids.size()) + 63) / 64);
  EXPECT_LE(packs.size(), least + least / 50);
  EXPECT_EQ(packs.longest(set), 64);
}

TEST(Encoded, SurvivesAFileAndPartsAppend) {
  Encoded set = test::set_of(20, 9);
  set.counts.rows = 22, set.counts.reasons = {"file:3: no\nanswer"};
  const std::string path =
      (std::filesystem::temp_directory_path() / ("octet_encoded_" + std::to_string(::getpid()))).string();
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
}

TEST(HoldOut, SplitsByRowAndKeepsTheRest) {
  const Encoded set = test::set_of(30, 9);
  const auto [training, held] = hold_out(set, {.rows = 30, .count = 7, .seed = 3});
  EXPECT_EQ(held.documents(), 7);
  EXPECT_EQ(training.documents(), 23);
  std::set<std::int64_t> rows(training.rows.begin(), training.rows.end());
  for (const auto row : held.rows) EXPECT_FALSE(rows.contains(row));
}

}  // namespace
}  // namespace octet::data
