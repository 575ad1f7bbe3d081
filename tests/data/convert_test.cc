#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/data/dataset.h"
#include "support/temporary_folder.h"

namespace octet::data::convert_test {
namespace {

std::string text_or_empty(const Json& value) {
  return value.is_string() ? value.get<std::string>() : "";
}

TEST(Convert, EveryReferenceRowBecomesTheSameConversation) {
  std::int64_t checked = 0;
  for (const auto& line : split(read_file(OCTET_SOURCE_DIR "/tests/golden/data/conversion.jsonl"), '\n')) {
    if (line.empty()) continue;
    const Json c = parse_json(line, "conversion.jsonl");
    const RowFormat format = format_of_entry(c["dataset_info"], "case", "dataset_info.json");
    std::string why;
    const auto sample = convert_row(c["row"], format, &why);
    const Json& expected = c["expected"];
    if (expected["prompt"].empty() || expected["response"].empty()) {
      if (!sample) {
        EXPECT_FALSE(why.empty()) << line;
        ++checked;
        continue;
      }
    }
    ASSERT_TRUE(sample) << why << "\n" << line;
    // Numbers become text. LLaMA-Factory drops these rows.
    if (const auto answer = c["row"].find(format.response); answer != c["row"].end() && answer->is_number()) {
      EXPECT_EQ(sample->turns.back().content, answer->dump());
      ++checked;
      continue;
    }
    Json turns = expected["prompt"];
    for (const auto& turn : expected["response"]) turns.push_back(turn);
    if (sample->plain) {
      ASSERT_EQ(turns.size(), 1u) << line;
      EXPECT_EQ(sample->text, turns[0]["content"].get<std::string>()) << line;
    } else {
      ASSERT_EQ(sample->turns.size(), turns.size()) << line;
      for (std::size_t i = 0; i < turns.size(); ++i) {
        EXPECT_EQ(sample->turns[i].role, turns[i]["role"].get<std::string>()) << line;
        EXPECT_EQ(sample->turns[i].content, turns[i]["content"].get<std::string>()) << line;
      }
    }
    EXPECT_EQ(sample->system, text_or_empty(expected["system"])) << line;
    EXPECT_EQ(sample->tools, text_or_empty(expected["tools"])) << line;
    ++checked;
  }
  EXPECT_GE(checked, 40);
}

class Files : public testing::Test {
 protected:
  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ + "/" + name) << text;
    return folder_ + "/" + name;
  }
  std::string message(const std::vector<std::string>& dataset) {
    try {
      open_datasets({.dataset = dataset, .dataset_dir = folder_});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  }
  octet::test::TemporaryFolder scratch_{"data"};
  const std::string& folder_ = scratch_.path();
};

TEST_F(Files, RecognisesFormatsByTheirKeys) {
  const std::vector<std::pair<std::string, std::string>> rows{
      {R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":"q"},{"role":"assistant","content":"a"}]})",
       "s"},
      {R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a"}]})", ""},
      {R"({"instruction":"q","output":"a"})", ""},
      {R"({"prompt":"q","completion":"a"})", ""},
      {R"({"prompt":"q","response":"a","system":"s"})", "s"},
      {R"({"input":"q","target":"a"})", ""},
      {R"({"system":"s","user":"q","assistant":"a"})", "s"}};
  for (const auto& [row, system] : rows) {
    const Json json = parse_json(row, "row");
    std::string why;
    const auto sample = convert_row(json, detect_format(json, "row"), &why);
    ASSERT_TRUE(sample) << why << row;
    ASSERT_EQ(sample->turns.size(), 2u);
    EXPECT_EQ(sample->turns[0].content, "q");
    EXPECT_EQ(sample->turns[1].content, "a");
    EXPECT_EQ(sample->system, system);
  }
  const Json text = parse_json(R"({"text":"t"})", "row");
  EXPECT_EQ(convert_row(text, detect_format(text, "row"), nullptr)->text, "t");
  EXPECT_THROW(detect_format(parse_json(R"({"foo":1})", "row"), "here"), Error);
}

TEST_F(Files, CallsAndAnswersOfToolsBecomeTurns) {
  const Json row = parse_json(R"({"messages":[{"role":"user","content":"q"},
    {"role":"assistant","content":null,"tool_calls":[
      {"id":"1","type":"function","function":{"name":"f","arguments":"{\"y\": 1, \"x\": \"é\"}"}},
      {"id":"2","type":"function","function":{"name":"g","arguments":{}}}]},
    {"role":"tool","content":"one"},{"role":"tool","content":"two"},
    {"role":"assistant","content":"a"}],"tools":[{"name":"f"}]})",
                              "row");
  std::string why;
  const auto sample = convert_row(row, detect_format(row, "row"), &why);
  ASSERT_TRUE(sample) << why;
  ASSERT_EQ(sample->turns.size(), 4u);
  EXPECT_EQ(sample->turns[1].role, "function");
  EXPECT_EQ(sample->turns[1].content,
            R"([{"name":"f","arguments":{"y":1,"x":"é"}},{"name":"g","arguments":{}}])");
  EXPECT_EQ(sample->turns[2].role, "observation");
  EXPECT_EQ(sample->turns[2].content, "one\n</tool_response>\n<tool_response>\ntwo");
  EXPECT_EQ(sample->tools, R"([{"name":"f"}])");
  for (const char* call :
       {R"({"function":{"name":"f","arguments":"{"}})", R"({"function":{"name":"f"}})", "3"}) {
    const Json wrong =
        parse_json(R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[)" +
                       std::string(call) + "]}]}",
                   "row");
    EXPECT_FALSE(convert_row(wrong, detect_format(wrong, "row"), &why)) << call;
    EXPECT_NE(why.find("tool_calls"), std::string::npos) << why;
  }
}

TEST_F(Files, RowsWithImagesAreNotTrainedWithoutThem) {
  const std::string chat =
      R"("messages":[{"role":"user","content":"<image>q"},{"role":"assistant","content":"a"}])";
  const auto refused = [](const std::string& text, const RowFormat& format) {
    std::string why;
    return convert_row(parse_json(text, "row"), format, &why) ? std::string() : why;
  };
  const std::string with = "{" + chat + R"(,"images":["a.png"]})", without = "{" + chat + R"(,"images":[]})";
  const RowFormat format = detect_format(parse_json(with, "row"), "row");
  EXPECT_EQ(refused(with, format), "'images' holds images, audio or video, which are not trained");
  EXPECT_EQ(refused(without, format), "");
  const RowFormat listed = format_of_entry(
      parse_json(
          R"({"formatting":"sharegpt","columns":{"messages":"messages","images":"pictures"},)"
          R"("tags":{"role_tag":"role","content_tag":"content","user_tag":"user","assistant_tag":"assistant"}})",
          "entry"),
      "entry", "info");
  EXPECT_EQ(refused(with, listed), "") << "a column that the entry does not name is none";
  EXPECT_NE(refused("{" + chat + R"(,"pictures":"a.png"})", listed).find("'pictures'"), std::string::npos);
}

TEST_F(Files, OpensPathsListsGlobsFoldersAndNames) {
  write("a.jsonl", "{\"text\":\"1\"}\n\n{\"text\":\"2\"}\r\n");
  write("b.jsonl", "{\"text\":\"3\"}");
  write("c.json", R"([{"instruction":"q","output":"a"}])");
  write("dataset_info.json",
        R"({"named":{"file_name":"c.json"},"sampled":{"file_name":"a.jsonl","num_samples":5,
                                 "columns":{"prompt":"text"}}})");
  const auto rows = [this](const std::vector<std::string>& names) {
    std::vector<std::int64_t> counts;
    for (const auto& source : open_datasets({.dataset = names, .dataset_dir = folder_}))
      counts.push_back(source.rows);
    return counts;
  };
  EXPECT_EQ(rows({folder_ + "/a.jsonl", "b.jsonl"}), (std::vector<std::int64_t>{2, 1}));
  EXPECT_EQ(rows({folder_ + "/*.jsonl"}), (std::vector<std::int64_t>{3}));
  EXPECT_EQ(rows({folder_ + "/*.json"}), (std::vector<std::int64_t>{1})) << "without dataset_info.json";
  EXPECT_EQ(rows({"named"}), (std::vector<std::int64_t>{1}));
  const auto sampled = open_datasets({.dataset = {"sampled"}, .dataset_dir = folder_})[0];
  ASSERT_EQ(sampled.rows, 5);
  EXPECT_NE(sampled.row_at(0), sampled.row_at(1)) << "every row once before any row twice";
  std::set<std::int64_t> firsts;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    const auto again = open_datasets({.dataset = {"sampled"}, .dataset_dir = folder_, .seed = seed})[0];
    firsts.insert(again.row_at(0));
  }
  EXPECT_EQ(firsts.size(), 2u) << "the seed decides which rows come first";
  EXPECT_EQ(open_datasets({.dataset = {"a.jsonl"}, .dataset_dir = folder_, .max_samples = 1})[0].rows, 1);
  EXPECT_EQ(open_rows(folder_ + "/a.jsonl")->where(1), folder_ + "/a.jsonl:3");
}

TEST_F(Files, SaysWhatIsWrong) {
  write("dataset_info.json", R"({"alpaca_demo":{"file_name":"x.json"},"hub":{"hf_hub_url":"a/b"}})");
  write("empty.jsonl", "\n\n");
  const std::string broken = write("broken.jsonl", "{\"text\":\"1\"}\n{\"text\":");
  write("bytes.jsonl", "{\"text\":\"\xff\"}");
  write("data.doc", "a,b");
  EXPECT_NE(message({"alpaca_deno"}).find("did you mean 'alpaca_demo'"), std::string::npos);
  EXPECT_NE(message({"nowhere.jsonl"}).find("nowhere.jsonl"), std::string::npos);
  EXPECT_NE(message({"hub"}).find("hf_hub_url"), std::string::npos);
  EXPECT_NE(message({"alpaca_demo"}).find("/x.json"), std::string::npos) << "with the entry's name";
  EXPECT_NE(message({"alpaca_demo"}).find("dataset_info.json: alpaca_demo"), std::string::npos);
  EXPECT_NE(message({"empty.jsonl"}).find("empty"), std::string::npos);
  EXPECT_NE(message({folder_ + "/data.doc"}).find(".doc"), std::string::npos);
  EXPECT_NE(message({"bytes.jsonl"}).find("UTF-8"), std::string::npos);
  try {
    open_rows(broken)->row(1);
    FAIL() << "a broken row must be refused";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("broken.jsonl:2"), std::string::npos);
  }
}

}  // namespace
}  // namespace octet::data::convert_test
