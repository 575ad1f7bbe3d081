// Extraction of a part of an answer.
#include "../src/answers/row_work.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"

namespace octet::answers::extraction_test {
namespace {

TEST(Extraction, TakesTheLastPlaceThatFitsWithoutBlanks) {
  const Extraction answer("Answer: (.*)", {});
  EXPECT_EQ(answer("Answer: one\nAnswer:   two  \nthat is all"), "two");
  EXPECT_EQ(answer("no such thing"), std::nullopt);
  EXPECT_EQ(answer(""), std::nullopt);
  EXPECT_EQ(Extraction("([0-9]+)-([0-9]+)", {})("1-2 and 34-5"), "34") << "the first group";
  EXPECT_EQ(Extraction("(x*)", {})("axx"), "xx") << "the empty text that fits in front does not end it";
}

TEST(Extraction, LooksBehindTheLastThought) {
  const Extraction word("([a-z]+)", {});
  EXPECT_EQ(word("<think>maybe cat</think> dog"), "dog");
  EXPECT_EQ(word("<think>cat</think><think>or dog</think>"), std::nullopt) << "all of it is thought";
  EXPECT_EQ(word("<think>cat</think> 1 <think>or dog</think> 2"), std::nullopt);
  EXPECT_EQ(word("cat</think> dog"), "dog") << "the prompt has opened the thought";
  EXPECT_EQ(word("<think>it may be a cat, or a"), std::nullopt) << "it never ended";
}

TEST(Extraction, CountsOnlyWhatIsAllowed) {
  const Extraction of_two("([a-z]+)", {"cat", "dog"});
  EXPECT_EQ(of_two("bird dog"), "dog");
  EXPECT_EQ(of_two("dog bird"), std::nullopt) << "the last one is meant";
}

TEST(Extraction, RefusesWhatIsNoPatternAndOneWithoutAGroup) {
  for (const char* pattern : {"(", "[a-z]+", "(?:a)"})
    EXPECT_THROW(Extraction(pattern, {}), Error) << pattern;
}

}  // namespace
}  // namespace octet::answers::extraction_test
