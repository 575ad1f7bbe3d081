// Text, JSON and shapes from outside.
#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/base/tensor_slice.h"

namespace octet::text_test {
namespace {

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Json, AKeyThatStandsTwiceIsRefusedWhereverItStands) {
  EXPECT_NE(error_of([] { parse_json(R"({"a": 1, "a": 2})", "file"); }).find("'a' occurs twice"),
            std::string::npos);
  EXPECT_NE(error_of([] { parse_json(R"({"b": [{"a": 1, "a": 2}]})", "file"); }).find("'a'"),
            std::string::npos);
  EXPECT_EQ(parse_json(R"({"a": {"a": 1}, "b": {"a": 2}})", "file")["b"]["a"], 2)
      << "not twice in one object";
}

TEST(ShortText, IsCutAtWholeCharacters) {
  EXPECT_EQ(short_text("12345678", 8), "12345678");
  EXPECT_EQ(short_text("123456789", 8), "12345...");
  EXPECT_EQ(short_text("1234\u00e4\u00e4\u00e4", 8), "1234...") << "a character has two bytes";
  EXPECT_EQ(short_text(std::string(81, 'x')), std::string(77, 'x') + "...");
  EXPECT_EQ(short_json(Json("a\xff")), "\"a\uFFFD\"") << "not UTF-8";
  EXPECT_EQ(short_json(Json{1, 2, 3}, 6), "[1,...");
}

TEST(Json, NestingHasALimit) {
  const auto nested = [](int depth) {
    return std::string(static_cast<std::size_t>(depth), '[') +
           std::string(static_cast<std::size_t>(depth), ']');
  };
  EXPECT_EQ(error_of([&] { parse_json(nested(8), "file", false, 8); }), "");
  EXPECT_NE(error_of([&] { parse_json(nested(10), "file", false, 8); }).find("nested too deeply"),
            std::string::npos);
  EXPECT_NE(error_of([&] { parse_json(nested(100000), "file"); }).find("nested too deeply"),
            std::string::npos);
}

TEST(Json, NumbersAreReadInRangeOrRefused) {
  const Json object =
      parse_json(R"({"two": 2.0, "half": 0.5, "large": 18446744073709551615, "text": "7", "null": null,
                                     "far": 1e300})",
                 "file");
  const auto read = [&](const char* key, std::int64_t low = 0, std::int64_t high = 10) {
    return json_int(object, key, -1, low, high, "file");
  };
  EXPECT_EQ(read("two"), 2);
  EXPECT_EQ(read("null"), -1);
  EXPECT_EQ(read("absent"), -1);
  for (const char* key : {"half", "large", "text", "far"}) EXPECT_NE(error_of([&] { read(key); }), "") << key;
  EXPECT_NE(error_of([&] { read("two", 3); }), "");
  EXPECT_NE(error_of([&] { read("two", 0, 1); }), "");
  EXPECT_EQ(read("two", 2, 2), 2);
}

TEST(Utf8, WhatIsNotWellFormedIsFound) {
  for (const char* good : {"", "a", "\xC2\x80", "\xDF\xBF", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF",
                           "gr\xC3\xB6\xC3\x9F"
                           "e"}) {
    EXPECT_TRUE(is_utf8(good)) << good;
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xE0\x9F\xBF", "\xED\xA0\x80", "\xED\xBF\xBF",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xE2\x82", "\xE2(\xA1", "\xFF"}) {
    EXPECT_FALSE(is_utf8(bad)) << bad;
  }
}

TEST(Shapes, WhoseProductDoesNotFitAreRefused) {
  EXPECT_EQ(element_count({3, 5, 7}, "w"), 105);
  EXPECT_EQ(element_count({}, "w"), 1);
  EXPECT_EQ(element_count({4, 0}, "w"), 0);
  constexpr std::int64_t large = std::int64_t{1} << 32;
  // If the product wrapped around, the last shape would give 0, and the shape before it 2^62.
  for (const std::vector<std::int64_t>& shape : {std::vector<std::int64_t>{-1},
                                                 {2, -3},
                                                 {-2, -3},
                                                 {INT64_MAX, 2},
                                                 {large, large / 4, 4},
                                                 {large, large}}) {
    EXPECT_NE(error_of([&] { element_count(shape, "w"); }), "");
  }
}

TEST(Words, AreThoseThatPeopleRead) {
  EXPECT_EQ(with_commas(0), "0");
  EXPECT_EQ(with_commas(999), "999");
  EXPECT_EQ(with_commas(1000), "1,000");
  EXPECT_EQ(with_commas(-1234567), "-1,234,567");
  EXPECT_EQ(with_commas(-123), "-123");
  EXPECT_EQ(human_bytes(512), "512 B");
  EXPECT_EQ(human_bytes(12.0 * (1 << 20)), "12.0 MiB");
  EXPECT_EQ(human_bytes(1.5 * (1 << 30)), "1.50 GiB");
  EXPECT_EQ(clock_time(83.9), "0:01:23");
  EXPECT_EQ(clock_time(3600 * 100 + 61), "100:01:01");
  EXPECT_EQ(nearest_name("learing_rate", {"learning_rate", "seed"}), "learning_rate");
  EXPECT_EQ(nearest_name("qqqq", {"learning_rate", "seed"}), "");
  EXPECT_EQ(nearest_name("nera", {"near", "far"}), "near") << "neighbours that are exchanged";
  EXPECT_EQ(nearest_name("base_model", {"task_mode"}), "");
  EXPECT_EQ(nearest_name("gpu", {"fp8"}), "");
  EXPECT_EQ(nearest_name("some", {"none", "full"}), "");
  EXPECT_EQ(nearest_name("4", {"0", "1", "2", "3"}), "");
  EXPECT_EQ(nearest_name("sequence_length", {"sequence_len"}), "sequence_len");
  EXPECT_EQ(nearest_name("zero_optimization.foo", {"zero_optimization.stage"}), "")
      << "what dotted paths begin with makes them no nearer";
  EXPECT_EQ(nearest_name("zero_optimisation.stage", {"zero_optimization.stage"}), "zero_optimization.stage");
  EXPECT_EQ(nearest_name("optimizer.parameters", {"optimizer.params"}), "optimizer.params");
  EXPECT_EQ(trim(" \t a b\r\n"), "a b");
  EXPECT_EQ(split("a,,b,", ','), (std::vector<std::string>{"a", "", "b", ""}));
}

TEST(Text, NamesOfAFamilyBeginWithTheSameLetters) {
  const std::vector<std::string> names{"phi", "phi4_mini", "philosophy", "qwen3"};
  EXPECT_EQ(names_of_family("phi5", names), (std::vector<std::string>{"phi", "phi4_mini"}));
  EXPECT_EQ(names_of_family("Qwen2.5", names), std::vector<std::string>{"qwen3"});
  EXPECT_TRUE(names_of_family("q", names).empty());
  EXPECT_TRUE(names_of_family("4", names).empty());
  EXPECT_TRUE(same_digits("phi-4", "phi4"));
  EXPECT_FALSE(same_digits("phi5", "phi4"));
  EXPECT_FALSE(same_digits("phi", "phi4"));
}

}  // namespace
}  // namespace octet::text_test
