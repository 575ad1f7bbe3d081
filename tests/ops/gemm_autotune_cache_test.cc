#include "gemm_autotune_cache.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "octet/base/error.h"
#include "support/temporary_folder.h"

namespace octet::ops::gemm_autotune_cache_test {
namespace {

namespace fs = std::filesystem;

class GemmChoices : public testing::Test {
 protected:
  std::string folder() const { return folder_ / "below"; }

  test::TemporaryFolder folder_{"choices"};
};

GemmKey key(std::int64_t m) {
  GemmKey key{};
  key[0] = m;
  key[15] = -m;
  return key;
}
AlgorithmBits algorithm(std::uint64_t first) {
  return {first, std::numeric_limits<std::uint64_t>::max(), 0, 1, 2, 3, 4, 5};
}

TEST_F(GemmChoices, WhatIsKeptIsFoundByTheNextOne) {
  AutotuneCache first(folder(), "GPU A, library 1");
  EXPECT_FALSE(first.find(key(3)));
  first.keep({key(3)}, algorithm(30));
  first.keep({key(4)}, algorithm(40));
  EXPECT_EQ(first.find(key(3)), algorithm(30));
  const AutotuneCache next(folder(), "GPU A, library 1");
  EXPECT_EQ(next.find(key(3)), algorithm(30));
  EXPECT_EQ(next.find(key(4)), algorithm(40));
  EXPECT_FALSE(next.find(key(5)));
}

// Algorithms of one library version are invalid for other versions.
TEST_F(GemmChoices, OtherMachinesAndLibrariesHaveFilesOfTheirOwn) {
  AutotuneCache(folder(), "GPU A, library 1").keep({key(3)}, algorithm(30));
  EXPECT_FALSE(AutotuneCache(folder(), "GPU A, library 2").find(key(3)));
  // Names that differ only in characters that are invalid in file names share a file, but not its contents.
  EXPECT_FALSE(AutotuneCache(folder(), "GPU-A, library 1").find(key(3)));
}

TEST_F(GemmChoices, ProcessesThatShareTheFileKeepWhatTheOthersWrote) {
  AutotuneCache one(folder(), "m"), other(folder(), "m");
  one.keep({key(1)}, algorithm(1));
  other.keep({key(2)}, algorithm(2));
  one.keep({key(3)}, algorithm(3));
  const AutotuneCache next(folder(), "m");
  for (const std::int64_t m : {1, 2, 3}) {
    EXPECT_EQ(next.find(key(m)), algorithm(static_cast<std::uint64_t>(m))) << m;
  }
}

TEST_F(GemmChoices, DamagedFilesAreMadeAnew) {
  const std::string path = [&] {
    AutotuneCache choices(folder(), "m");
    choices.keep({key(1)}, algorithm(1));
    return choices.path();
  }();
  for (
      const char* text :
      {"", "{", "[]", "{\"format\":1,\"machine\":\"m\"}", "{\"format\":1,\"machine\":\"m\",\"choices\":[{}]}",
       R"({"format":1,"machine":"m","choices":[{"product":[1],"algorithm":[1,2,3,4,5,6,7,8]}]})",
       R"({"format":1,"machine":"m","choices":[{"product":[1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,0.5],"algorithm":[]}]})",
       R"({"format":2,"machine":"m","choices":[]})"}) {
    std::ofstream(path) << text;
    AutotuneCache choices(folder(), "m");
    EXPECT_FALSE(choices.find(key(1))) << text;
    choices.keep({key(2)}, algorithm(2));
    EXPECT_EQ(AutotuneCache(folder(), "m").find(key(2)), algorithm(2)) << text;
  }
}

TEST_F(GemmChoices, WhereNothingCanBeWrittenTheRunGoesOn) {
  fs::create_directories(folder_.path());
  std::ofstream(folder()) << "a file where the folder would be";
  AutotuneCache choices(folder(), "m");
  choices.keep({key(1)}, algorithm(1));
  EXPECT_EQ(choices.find(key(1)), algorithm(1));
  EXPECT_EQ(choices.path(), "");
  AutotuneCache none("", "m");
  none.keep({key(1)}, algorithm(1));
  EXPECT_EQ(none.find(key(1)), algorithm(1));
}

TEST_F(GemmChoices, TheFileDoesNotGrowForEver) {
  AutotuneCache choices(folder(), "m");
  choices.keep({key(1)}, algorithm(1));
  {
    std::string list;
    for (int i = 0; i < 5000; ++i) {
      list += std::string(i > 0 ? "," : "") + "{\"product\":[" + std::to_string(i + 10) +
              ",0,0,0,0,0,0,0,0,0,0,0,0,0,0,0],\"algorithm\":[1,2,3,4,5,6,7,8]}";
    }
    std::ofstream(choices.path()) << R"({"format":1,"machine":"m","choices":[)" << list << "]}";
  }
  choices.keep({key(-7)}, algorithm(7));
  EXPECT_EQ(AutotuneCache(folder(), "m").find(key(-7)), algorithm(7)) << "the newest one stays";
  std::ifstream file(choices.path());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  std::size_t kept = 0;
  for (std::size_t at = 0; (at = text.find("\"product\"", at)) != std::string::npos; ++at) ++kept;
  EXPECT_EQ(kept, 4096u);
}

TEST_F(GemmChoices, TheFolderIsTheOneToldElseTheUsersCache) {
  const auto with = [](const char* told, const char* cache, const char* home) {
    const auto set = [](const char* name, const char* value) {
      value != nullptr ? ::setenv(name, value, 1) : ::unsetenv(name);
    };
    set("OCTETRUN_CACHE", told);
    set("XDG_CACHE_HOME", cache);
    set("HOME", home);
    return cache_folder();
  };
  EXPECT_EQ(with("/a", "/b", "/c"), "/a");
  EXPECT_EQ(with("off", "/b", "/c"), "");
  EXPECT_EQ(with(nullptr, "/b", "/c"), "/b/octet");
  EXPECT_EQ(with("", "", "/c"), "/c/.cache/octet");
  EXPECT_EQ(with(nullptr, nullptr, nullptr), "");
}

// 12,000 and 16,000 tokens are similar. The first shape gets a choice, which both use, until the second shape
// has come in a row so often that it gets a separate choice.
TEST_F(GemmChoices, ShapesThatRecurAreChosenForThemselvesOthersAsSimilarOnes) {
  AlgorithmBook book("", "m");
  const GemmKey similar = key(16384), first = key(12000), second = key(16000);
  EXPECT_FALSE(book.known(first, similar, true));
  EXPECT_FALSE(book.known(first, similar, false)) << "nothing is known, whether or not one may choose";
  book.choose(first, similar, algorithm(1));
  for (int i = 0; i < 5000; ++i) ASSERT_EQ(book.known(first, similar, true)->algorithm, algorithm(1));
  int as_the_first = 0;
  while (const auto known = book.known(second, similar, true)) {
    EXPECT_EQ(known->algorithm, algorithm(1));
    EXPECT_TRUE(known->checked);
    ASSERT_LT(++as_the_first, 100000);
  }
  EXPECT_EQ(as_the_first, 1000);
  EXPECT_EQ(book.known(second, similar, false)->algorithm, algorithm(1)) << "where choosing is not possible";
  book.choose(second, similar, algorithm(2));
  EXPECT_EQ(book.known(second, similar, true)->algorithm, algorithm(2));
  EXPECT_EQ(book.known(first, similar, true)->algorithm, algorithm(1));
  EXPECT_EQ(book.known(key(15000), similar, true)->algorithm, algorithm(1));
  EXPECT_FALSE(book.known(key(40000), key(65536), true));
}

// Micro-batches of packed documents: the number of tokens differs between micro-batches, is equal for all
// layers, and every number recurs during an epoch.
TEST_F(GemmChoices, EverOtherShapesAllTakeTheSimilarOne) {
  AlgorithmBook book("", "m");
  book.choose(key(1), key(2), algorithm(1));
  for (int i = 0; i < 20000; ++i) {
    const GemmKey tokens = key(12000 + i * 7919 % 288);
    for (int layer = 0; layer < 32; ++layer) ASSERT_TRUE(book.known(tokens, key(2), true)) << i;
  }
}

// One rank chooses. Ranks with cards of the same kind take the choice without timing or checks.
TEST_F(GemmChoices, WhatOneProcessChoseIsKnownToThoseThatLearnIt) {
  const GemmKey similar = key(16384), exact = key(12000);
  AlgorithmBook(folder(), "m").choose(key(7), key(8), algorithm(9));
  AlgorithmBook chooses(folder(), "m");
  chooses.choose(exact, similar, algorithm(1));
  const auto earlier = chooses.known(key(7), key(8), true);
  ASSERT_TRUE(earlier && !earlier->checked);
  chooses.checked(*earlier, key(8), true);
  AlgorithmBook learns("", "m");
  learns.choose(key(5), key(6), algorithm(5));
  learns.learn(chooses.text());
  for (const GemmKey& key : {exact, key(13000)}) {
    const auto known = learns.known(key, similar, false);
    ASSERT_TRUE(known);
    EXPECT_TRUE(known->checked);
    EXPECT_EQ(known->algorithm, algorithm(1));
  }
  EXPECT_EQ(learns.known(key(7), key(8), false)->algorithm, algorithm(9))
      << "of an earlier run, checked there";
  EXPECT_EQ(learns.known(key(5), key(6), true)->algorithm, algorithm(5)) << "what was known stays";
  EXPECT_FALSE(learns.known(key(40000), key(65536), true));
}

// When choosing is no longer allowed, the nearest number of tokens by ratio is used.
TEST_F(GemmChoices, OfOtherNumbersOfTokensTheNearestIsNamed) {
  const auto of_tokens = [](std::int64_t count) { return GemmKey{count, 4096}; };
  AlgorithmBook(folder(), "m").choose(of_tokens(900), of_tokens(1024), algorithm(9));
  AlgorithmBook book(folder(), "m");
  EXPECT_FALSE(book.nearest(of_tokens(1024), 0)) << "what an earlier run chose was not checked in this one";
  book.choose(of_tokens(100), of_tokens(128), algorithm(1));
  book.choose(of_tokens(2000), of_tokens(2048), algorithm(2));
  GemmKey other = of_tokens(4096);
  other[1] += 1;
  book.choose(other, other, algorithm(3));
  EXPECT_EQ(book.nearest(of_tokens(128), 0)->algorithm, algorithm(1));
  EXPECT_EQ(book.nearest(of_tokens(256), 0)->algorithm, algorithm(1));
  EXPECT_EQ(book.nearest(of_tokens(512), 0)->algorithm, algorithm(2)) << "as far from both: of more tokens";
  EXPECT_EQ(book.nearest(of_tokens(512), 0)->of, of_tokens(2048));
  EXPECT_EQ(book.nearest(of_tokens(1024), 0)->algorithm, algorithm(2));
  EXPECT_EQ(book.nearest(of_tokens(65536), 0)->algorithm, algorithm(2)) << "not of another shape";
  other[0] = 16;
  EXPECT_EQ(book.nearest(other, 0)->algorithm, algorithm(3));
  other[0] = 4096;
  other[2] += 1;
  EXPECT_FALSE(book.nearest(other, 0));
  EXPECT_EQ(book.nearest(other, 2)->algorithm, algorithm(3)) << "the number of tokens stands elsewhere";
}

TEST_F(GemmChoices, OtherTextIsNotLearned) {
  AlgorithmBook book("", "m");
  for (const char* text :
       {"", "{}", "[]", R"({"format":2,"exact":[],"similar":[]})", R"({"format":1,"exact":[]})",
        R"({"format":1,"exact":[{"product":[1]}],"similar":[]})"}) {
    EXPECT_THROW(book.learn(text), Error) << text;
  }
  book.learn(AlgorithmBook("", "m").text());
}

TEST_F(GemmChoices, WhatAnEarlierRunChoseIsCheckedOnceBeforeItIsUsed) {
  const GemmKey similar = key(16384), exact = key(12000);
  AlgorithmBook(folder(), "m").choose(exact, similar, algorithm(1));
  {
    AlgorithmBook next(folder(), "m");
    EXPECT_FALSE(next.known(exact, similar, false)) << "it could not be checked";
    const auto known = next.known(exact, similar, true);
    ASSERT_TRUE(known);
    EXPECT_EQ(known->algorithm, algorithm(1));
    EXPECT_EQ(known->of, exact);
    EXPECT_FALSE(known->checked);
    next.checked(*known, similar, true);
    EXPECT_TRUE(next.known(exact, similar, true)->checked);
    EXPECT_TRUE(next.known(exact, similar, false)->checked);
    EXPECT_TRUE(next.known(key(13000), similar, true)->checked) << "a similar one uses it too";
  }
  {
    AlgorithmBook next(folder(), "m");
    const auto known = next.known(key(13000), similar, true);
    ASSERT_TRUE(known) << "similar shapes are kept too";
    EXPECT_EQ(known->of, similar);
    EXPECT_FALSE(known->checked);
    next.checked(*known, similar, true);
    EXPECT_TRUE(next.known(key(13000), similar, true)->checked);
    EXPECT_FALSE(next.known(exact, similar, true)->checked) << "the exact one has a choice of its own";
  }
  AlgorithmBook next(folder(), "m");
  next.checked(*next.known(exact, similar, true), similar, false);
  const auto other = next.known(exact, similar, true);
  ASSERT_TRUE(other);
  EXPECT_EQ(other->of, similar) << "the next best thing";
  next.checked(*other, similar, false);
  EXPECT_FALSE(next.known(exact, similar, true)) << "now one is to be chosen";
  next.choose(exact, similar, algorithm(3));
  EXPECT_EQ(next.known(exact, similar, true)->algorithm, algorithm(3));
  EXPECT_EQ(AlgorithmBook(folder(), "m").known(exact, similar, true)->algorithm, algorithm(3));
}

}  // namespace
}  // namespace octet::ops::gemm_autotune_cache_test
