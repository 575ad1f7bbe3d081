// ROUGE-L against its definition, computed in another way.
#include "octet/text/rouge.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace octet::text::rouge_test {
namespace {

TEST(RougeL, IsTheF1OfTheLongestCommonSubsequenceOfWords) {
  // Precision 4/4 and recall 4/6. The order of words matters.
  EXPECT_DOUBLE_EQ(rouge_l("the cat on mat", "the cat sat on the mat"), 0.8);
  EXPECT_DOUBLE_EQ(rouge_l("mat the on cat", "the cat sat on the mat"), 2.0 * 2 / 10);
  EXPECT_DOUBLE_EQ(rouge_l("police kill the gunman", "police killed the gunman"), 0.75);
  EXPECT_DOUBLE_EQ(rouge_l("a b c", "a b c"), 1);
  EXPECT_DOUBLE_EQ(rouge_l("a", "b"), 0);
}

TEST(RougeL, SeesWordsAndNotHowTheyAreSet) {
  EXPECT_DOUBLE_EQ(rouge_l("It's 5 O'CLOCK.", "it s\t5,o-clock"), 1);
  EXPECT_DOUBLE_EQ(rouge_l("  \n", "word"), 0);
  EXPECT_DOUBLE_EQ(rouge_l("word", "?!"), 0);
  EXPECT_DOUBLE_EQ(rouge_l("", ""), 0);
  EXPECT_DOUBLE_EQ(rouge_l("größe zählt", "größe täuscht"), 0.5) << "other letters do not part words";
}

// The definition, without a table: all subsequences of the shorter text.
double by_definition(const std::vector<int>& a, const std::vector<int>& b) {
  std::size_t best = 0;
  for (std::uint32_t chosen = 0; chosen < (1u << a.size()); ++chosen) {
    std::size_t at = 0, length = 0;
    bool inside = true;
    for (std::size_t i = 0; i < a.size() && inside; ++i) {
      if ((chosen >> i & 1u) == 0) continue;
      while (at < b.size() && b[at] != a[i]) ++at;
      inside = at++ < b.size();
      ++length;
    }
    if (inside) best = std::max(best, length);
  }
  return 2.0 * static_cast<double>(best) / static_cast<double>(a.size() + b.size());
}

TEST(RougeL, AgreesWithItsDefinitionOnManyTexts) {
  std::uint32_t state = 7;
  const auto draw = [&state](std::uint32_t n) {
    return ((state = state * 1664525u + 1013904223u) >> 16) % n;
  };
  for (int round = 0; round < 200; ++round) {
    std::vector<int> a(1 + draw(9)), b(1 + draw(13));
    std::string left, right;
    for (int& word : a) left += " w" + std::to_string(word = static_cast<int>(draw(4)));
    for (int& word : b) right += " w" + std::to_string(word = static_cast<int>(draw(4)));
    EXPECT_DOUBLE_EQ(rouge_l(left, right), by_definition(a, b)) << left << " |" << right;
  }
}

}  // namespace
}  // namespace octet::text::rouge_test
