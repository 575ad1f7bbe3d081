// JSON from outside: bad input is refused, and time and memory grow linearly with the size.
#include "octet/base/json.h"

#include <gtest/gtest.h>

#include <ctime>

#include "octet/base/error.h"

namespace octet::json_test {
namespace {

std::string refusal(const std::string& text, int depth = 256) {
  try {
    parse_json(text, "file.json", false, depth);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    return e.what();
  }
  return "";
}

// `count` members "key0": 0, …
std::string members(int count) {
  std::string text;
  for (int i = 0; i < count; ++i)
    text += (i ? ",\"key" : "\"key") + std::to_string(i) + "\":" + std::to_string(i);
  return text;
}

TEST(JsonText, KeepsWhatStandsThere) {
  const std::string text = R"({"b":[1,-2,2.5,"x",null,true,{},[]],"a":{"z":1,"y":[{"k":"v"},{"k":2}]}})";
  EXPECT_EQ(parse_json(text, "file.json").dump(), text);
  EXPECT_EQ(parse_json("[1, /* two */ 2] // end", "file.json", true).dump(), "[1,2]");
  EXPECT_EQ(parse_json("7", "file.json"), 7);
}

TEST(JsonText, AKeyThatStandsTwiceIsRefusedInSmallObjectsAndInLargeOnes) {
  for (const int count : {1, 2, 15, 16, 17, 18, 500}) {
    EXPECT_EQ(refusal("{" + members(count) + "}"), "") << count;
    EXPECT_NE(refusal("{" + members(count) + ",\"key0\":1}").find("'key0' occurs twice"), std::string::npos)
        << count;
    const std::string last = "key" + std::to_string(count - 1);
    EXPECT_NE(refusal("{" + members(count) + ",\"" + last + "\":1}").find("occurs twice"), std::string::npos)
        << count;
  }
  EXPECT_EQ(refusal(R"({"a":{"a":1},"b":{"a":1}})"), "") << "in different objects";
}

TEST(JsonText, DepthIsLimited) {
  EXPECT_EQ(refusal("[[[1]]]", 3), "");
  EXPECT_NE(refusal("[[[[1]]]]", 3).find("nested too deeply"), std::string::npos);
  EXPECT_NE(refusal(R"({"a":{"a":{"a":{"a":1}}}})", 3).find("nested too deeply"), std::string::npos);
  EXPECT_NE(refusal(std::string(1000000, '[')).find("nested too deeply"), std::string::npos);
  for (const char* broken : {"", "{", "[1,]", "{\"a\"}", "nul", "1e999", "[1] 2"})
    EXPECT_NE(refusal(broken).find("not valid JSON"), std::string::npos) << broken;
}

// Four times as many members take four times as long; quadratic time would take sixteen times. CPU time is
// measured, so other processes do not count.
TEST(JsonText, ManyMembersAndManyElementsTakeTimeInProportionToThem) {
  const auto seconds_of = [](int count) {
    const std::clock_t start = std::clock();
    EXPECT_EQ(parse_json("{" + members(count) + "}", "file.json").size(), static_cast<std::size_t>(count));
    std::string list = "[";
    for (int i = 0; i < count; ++i) list += R"({"name":"a","shape":[1,2]},)";
    list.back() = ']';
    EXPECT_EQ(parse_json(list, "file.json").size(), static_cast<std::size_t>(count));
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  const double few = seconds_of(25000);
  EXPECT_LT(seconds_of(100000), 9 * few);
}

}  // namespace
}  // namespace octet::json_test
