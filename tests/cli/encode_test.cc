// `trainer encode` against the reference's tokenizers and templates, through the command line.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/files.h"
#include "octet/base/json.h"

namespace octet::test::encode_test {
namespace {

const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/";

std::vector<Json> lines_of(const std::string& text, const std::string& where) {
  std::vector<Json> lines;
  for (const auto& line : split(text, '\n')) {
    if (!line.empty()) lines.push_back(parse_json(line, where));
  }
  return lines;
}

// What the program answers to these lines, a line for a line.
std::vector<Json> encode(const std::string& arguments, const std::vector<Json>& lines) {
  const TemporaryFolder folder("encode");
  std::string text;
  for (const Json& line : lines) text += line.dump() + "\n";
  spill(folder / "in.jsonl", text);
  const Outcome run = trainer("encode " + arguments + " --input " + (folder / "in.jsonl"));
  EXPECT_EQ(run.code, 0) << run.err;
  EXPECT_EQ(run.err, "");
  return lines_of(run.out, "output");
}

using Ids = std::vector<std::int64_t>;

Ids operator+(Ids a, const Ids& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Golden files keep long repetitions as a block and its count.
Ids plain_ids(const Json& c) {
  Ids ids = c["ids_plain"];
  if (!c.contains("ids_block")) return ids;
  for (int i = 0; i < c["ids_count"].get<int>(); ++i) ids = std::move(ids) + c["ids_block"].get<Ids>();
  return ids + c["ids_end"].get<Ids>();
}

class EncodeText : public testing::TestWithParam<const char*> {
 protected:
  std::string folder_ = kGolden + "tokenizers/" + GetParam();
};

TEST_P(EncodeText, EveryLineHasTheSameIdsOffsetsAndText) {
  const auto cases = lines_of(read_file(folder_ + "/cases.jsonl"), "cases.jsonl");
  std::vector<Json> lines;
  for (const Json& c : cases) {
    lines.push_back(c.contains("text") ? Json{{"text", c["text"]}} : Json{{"repeat", c["repeat"]}});
  }
  const auto got = encode(folder_, lines);
  ASSERT_EQ(got.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    const Json &want = cases[i], &line = got[i];
    SCOPED_TRACE(lines[i].dump(-1, ' ', false, Json::error_handler_t::replace));
    const Ids ids = plain_ids(want);
    EXPECT_EQ(line["ids_plain"], ids);
    if (want.contains("repeat")) {
      for (const char* key : {"decoded_same", "decoded_length", "decoded_crc32"}) {
        EXPECT_EQ(line.value(key, Json()), want.value(key, Json())) << key;
      }
      continue;
    }
    if (want.contains("around")) {
      EXPECT_EQ(line["ids"], want["around"][0].get<Ids>() + ids + want["around"][1].get<Ids>());
    }
    if (want.contains("offsets")) {
      ASSERT_EQ(2 * line["offsets"].size(), want["offsets"].size());
      for (std::size_t t = 0; t < line["offsets"].size(); ++t) {
        const auto begin = want["offsets"][2 * t], end = want["offsets"][2 * t + 1];
        // Empty ranges stand at odd places in the reference.
        if (begin == end) continue;
        EXPECT_EQ(line["offsets"][t], Json::array({begin, end})) << "token " << t;
      }
    }
    // What equals the text, or the decoding with specials, is left out there.
    const Json decoded = want.value("decoded", want["text"]);
    EXPECT_EQ(line["decoded"], decoded);
    EXPECT_EQ(line["decoded_skip"], want.value("decoded_skip", decoded));
  }
}

TEST_P(EncodeText, EveryListOfIdsHasTheSameText) {
  const auto cases = lines_of(read_file(folder_ + "/decode.jsonl"), "decode.jsonl");
  std::vector<Json> lines;
  for (const Json& c : cases) lines.push_back({{"ids", c["ids"]}});
  const auto got = encode(folder_, lines);
  ASSERT_EQ(got.size(), cases.size());
  for (std::size_t i = 0; i < cases.size(); ++i) {
    EXPECT_EQ(got[i]["decoded"], cases[i]["decoded"]) << lines[i];
    EXPECT_EQ(got[i]["decoded_skip"], cases[i].value("decoded_skip", cases[i]["decoded"])) << lines[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, EncodeText, testing::Values("llama3", "qwen2", "gpt2", "gpt2_prefix"),
                         [](const auto& param) { return std::string(param.param); });

class EncodeMessages : public testing::TestWithParam<const char*> {};

TEST_P(EncodeMessages, EveryConversationHasTheSameIdsLabelsAndPrompts) {
  const std::string folder = kGolden + "templates/" + GetParam();
  const Json about = read_json(folder + "/template.json");
  const auto cases = lines_of(read_file(folder + "/cases.jsonl"), "cases.jsonl");
  std::vector<Json> lines;
  for (const Json& c : cases) {
    Json line;
    for (const char* key : {"messages", "system", "tools", "options"}) {
      if (c.contains(key)) line[key] = c[key];
    }
    if (c["why"] == "generation") line["generate"] = true;
    lines.push_back(std::move(line));
  }
  const auto got = encode(folder + "/" + about["tokenizer"].get<std::string>() + " --template " +
                              about["template"].get<std::string>() + " template_date=2026-03-09",
                          lines);
  ASSERT_EQ(got.size(), cases.size());
  int prompts = 0;
  for (std::size_t i = 0; i < cases.size(); ++i) {
    SCOPED_TRACE(lines[i].dump(-1, ' ', false, Json::error_handler_t::replace));
    for (const char* key : {"dropped", "refused", "input_ids", "prompt_ids", "response_ids"}) {
      EXPECT_EQ(got[i].value(key, Json()), cases[i].value(key, Json())) << key;
    }
    prompts += got[i].contains("prompt_ids") ? 1 : 0;
    if (!got[i].contains("labels")) continue;
    Ids labels = cases[i].value("labels", Ids());
    bool trained = false;
    for (const Json& run : cases[i].value("label_runs", Json::array())) {
      for (int n = 0; n < run.get<int>(); ++n) {
        labels.push_back(trained ? cases[i]["input_ids"][labels.size()].get<std::int64_t>() : -100);
      }
      trained = !trained;
    }
    EXPECT_EQ(got[i]["labels"], labels);
  }
  EXPECT_GT(prompts, 0);
}

INSTANTIATE_TEST_SUITE_P(Golden, EncodeMessages, testing::Values("llama3", "qwen", "chatml"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Encode, ALineThatAsksForNothingIsNamedByItsNumber) {
  const std::string model = kGolden + "tokenizers/gpt2";
  for (const std::string line : {"{}", "[1]", "not json", "{\\\"ids\\\": 7}", "{\\\"ids\\\": [true]}",
                                 "{\\\"messages\\\": []}", "{\\\"text\\\": 3}"}) {
    SCOPED_TRACE(line);
    const Outcome run =
        shell("printf \"{\\\"text\\\": \\\"a\\\"}\\n" + line + "\\n\" | " OCTET_TRAINER " encode " + model);
    EXPECT_EQ(run.code, 64) << run.err;
    EXPECT_EQ(errors_in(run), 1) << run.err;
    EXPECT_NE(run.err.find("standard input:2"), std::string::npos) << run.err;
  }
}

}  // namespace
}  // namespace octet::test::encode_test
