// The words that the expressions of tokenizer files cut, equal to the reference.
#include <gtest/gtest.h>

#include <chrono>

#include "folder.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/text/tokenizer.h"

namespace octet::text::regex_test {
namespace {

struct Case {
  std::string pattern, behavior;
  bool invert;
  std::string text;
  std::vector<std::string> words;
};

Tokenizer tokenizer_with(const Case& c) {
  // Every word becomes one unknown token, so that offsets show where the words are.
  const Json file = {{"added_tokens", Json::array()},
                     {"pre_tokenizer",
                      {{"type", "Split"},
                       {"pattern", {{"Regex", c.pattern}}},
                       {"behavior", c.behavior},
                       {"invert", c.invert}}},
                     {"model",
                      {{"type", "BPE"},
                       {"unk_token", "<unk>"},
                       {"fuse_unk", true},
                       {"vocab", {{"<unk>", 0}}},
                       {"merges", Json::array()}}}};
  const TestFolder folder;
  return Tokenizer::from_folder(folder.write("tokenizer.json", file.dump()));
}

std::vector<std::string> words_of(const Case& c) {
  std::vector<std::string> out;
  for (const Span& span : tokenizer_with(c).encode(c.text, {.offsets = true}).offsets) {
    out.push_back(c.text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

TEST(Regex, WordsAreCutAsTheReferenceCutsThem) {
  const std::vector<Case> cases = {
      {R"(\d+|[a-z]+?(?=c))",
       "Isolated",
       false,
       "abc123cabbc\331\243",
       {"ab", "c", "123", "cabb", "c", "\331\243"}},
      {R"(\d+|[a-z]+?(?=c))", "Removed", false, "abc123cabbc\331\243", {"c", "c"}},
      {R"(a{2,3}?)", "Isolated", false, "aaaaaaa", {"aa", "aa", "aa", "a"}},
      {R"(a{2}?)", "Isolated", false, "aaaaa", {"aa", "aa", "a"}},
      {R"((?<=a|bc)x)", "Isolated", false, "ax bcx cx x", {"a", "x", " bc", "x", " cx x"}},
      {R"((?<=a|bc)x)", "MergedWithPrevious", true, "ax bcx cx x", {"a", "x bc", "x cx x"}},
      {R"((?<!a)b)", "Isolated", false, "ab bb cb", {"ab ", "b", "b", " c", "b"}},
      {R"(a++b|a+)", "Isolated", false, "aaab aaa", {"aaab", " ", "aaa"}},
      {R"((?>a|ab)c)", "Isolated", false, "ac abc", {"ac", " abc"}},
      {R"((?>a|ab)c)", "MergedWithNext", false, "ac abc", {"ac abc"}},
      {R"([a-z&&[^aeiou]]+)", "Isolated", false, "hello world", {"h", "e", "ll", "o ", "w", "o", "rld"}},
      {R"([^\s\p{L}]+)", "Isolated", false, "ab, cd! 12", {"ab", ",", " cd", "!", " ", "12"}},
      {R"((?i:kS)|k)",
       "Isolated",
       false,
       "ks KS k\305\277 KS Kk",
       {"ks", " ", "KS", " ", "k\305\277", " ", "KS", " K", "k"}},
      {R"((?i:kS)|k)",
       "Contiguous",
       true,
       "ks KS k\305\277 KS Kk",
       {"ks", " ", "KS", " ", "k\305\277", " ", "KS", " K", "k"}},
      {R"((?i)strasse|x)", "Isolated", false, "STRASSE X", {"STRASSE", " ", "X"}},
      {R"(^a|b$)", "Isolated", false, "ab\nab\na", {"a", "b", "\n", "a", "b", "\n", "a"}},
      {R"(\bcat\b)", "Isolated", false, "cat concat cat_ cat", {"cat", " concat cat_ ", "cat"}},
      {R"(\bcat\b)", "Removed", false, "cat concat cat_ cat", {" concat cat_ "}},
      {R"((ab|a)(bc|c)?)", "Isolated", false, "abc abbc ac", {"abc", " ", "abbc", " ", "ac"}},
      {R"((?:ab|c)*d|.)", "Isolated", false, "ababcd ab", {"ababcd", " ", "a", "b"}},
      {R"(x*)", "Isolated", false, "axxb", {"a", "xx", "b"}},
      {R"(x*)", "MergedWithPrevious", true, "axxb", {"a", "xxb"}},
      {R"((?:a|b)*?c)", "Isolated", false, "ababc c", {"ababc", " ", "c"}},
      {R"(\p{Lu}\p{Ll}*)",
       "Isolated",
       false,
       "HelloWorld \303\204pfel\303\211",
       {"Hello", "World", " ", "\303\204pfel", "\303\211"}},
      {R"(\P{L}+)", "Isolated", false, "a1b22c", {"a", "1", "b", "22", "c"}},
      {R"(\P{L}+)", "MergedWithNext", false, "a1b22c", {"a", "1b", "22c"}},
      {R"(\P{L}+)", "MergedWithNext", false, "a1b22c333d4e", {"a", "1b", "22c", "333d", "4e"}},
      {R"([\p{^L}])", "Isolated", false, "a1-b", {"a", "1", "-", "b"}},
      {R"(\x41|\x{1F600}|\u00e9)",
       "Isolated",
       false,
       "A\360\237\230\200\303\251",
       {"A", "\360\237\230\200", "\303\251"}},
      {R"(.+?(?=\n|\z))", "Isolated", false, "one\ntwo", {"one", "\n", "two"}},
      {R"(.+?(?=\n|\z))", "Contiguous", true, "one\ntwo", {"one", "\n", "two"}},
      {R"((?m:.+))", "Isolated", false, "one\ntwo", {"one\ntwo"}},
      {R"([a\-c]|[\]x]+)", "Isolated", false, "a-b]x]", {"a", "-", "b", "]x]"}},
      {R"(a{,2}b)", "Isolated", false, "aaab b", {"a", "aab", " ", "b"}},
      {R"(a{,2}b)", "Removed", false, "aaab b", {"a", " "}},
      {R"(a{x}|b{)", "Isolated", false, "a{x} b{ a", {"a{x}", " ", "b{", " a"}},
      {R"(\h+)", "Isolated", false, "12fg 0xAZ", {"12f", "g ", "0", "x", "A", "Z"}},
      {R"(\w+)",
       "Isolated",
       false,
       "a_1 \303\251\302\262 \342\223\220\344\270\255 \342\200\215x",
       {"a_1", " ", "\303\251\302\262", " ", "\342\223\220\344\270\255", " \342\200\215", "x"}},
      {R"(\w+)",
       "MergedWithPrevious",
       true,
       "a_1 \303\251\302\262 \342\223\220\344\270\255 \342\200\215x",
       {"a_1 ", "\303\251\302\262 ", "\342\223\220\344\270\255 \342\200\215", "x"}},
      {R"((?=ab)a|b)", "Isolated", false, "ab ac", {"a", "b", " ac"}},
      {R"(\s+(?!\S)|\s+)", "Isolated", false, "a   b \n c  ", {"a", "  ", " ", "b", " \n", " ", "c", "  "}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(words_of(c), c.words) << c.pattern << " " << c.behavior << (c.invert ? " inverted: " : ": ")
                                    << c.text;
  }
}

TEST(Regex, WhatIsBrokenOrNotSupportedIsRefused) {
  for (const char* pattern : {"(",
                              ")",
                              "[",
                              "[]",
                              "a**(",
                              "*",
                              "\\",
                              "\\p{Klingon}",
                              "\\p{L",
                              "\\pL",
                              "[z-a]",
                              "\\1",
                              "(?<name>a)",
                              "(?#x)",
                              "a{2,1}",
                              "a{1001}",
                              "(?<=a+)b",
                              "[[:alpha:]]",
                              "\\x{110000}",
                              "\\xZZ",
                              "(?i:\xC3\xA9)",
                              "(?i:\\p{Lu})",
                              "(?x:a b)",
                              "^*"}) {
    EXPECT_THROW(tokenizer_with({pattern, "Isolated", false, "", {}}), Error) << pattern;
  }
  std::string deep;
  for (int i = 0; i < 5000; ++i) deep += "(";
  EXPECT_THROW(tokenizer_with({deep, "Isolated", false, "", {}}), Error);
  EXPECT_THROW(tokenizer_with({"(((a{1000}){1000}){1000}b)", "Isolated", false, "", {}}), Error);
}

double seconds_for(const Case& c, std::string* refused) {
  const auto start = std::chrono::steady_clock::now();
  try {
    words_of(c);
  } catch (const Error& e) {
    *refused = e.what();
  }
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// Expressions with exponential backtracking: each ends quickly, with the words or with an Error.
TEST(Regex, NestedLoopsEndSoonWhateverTheText) {
  std::string refused;
  std::string loops = "a";
  for (int i = 0; i < 50; ++i) loops = "(" + loops + "*)*";
  EXPECT_LT(seconds_for({loops + "b", "Isolated", false, "aab", {}}, &refused), 5);
  EXPECT_LT(seconds_for({"((a*)*)*b", "Isolated", false, "aab", {}}, &refused), 5);
  EXPECT_EQ(refused, "");
  const std::string million = std::string(1000000, 'a') + "!";
  EXPECT_LT(seconds_for({"(a+)+$", "Isolated", false, million, {}}, &refused), 15);
}

}  // namespace
}  // namespace octet::text::regex_test
