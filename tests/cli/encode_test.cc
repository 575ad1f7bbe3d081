// `trainer encode` against the reference's tokenizers and templates, through the command line.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "octet/data/template_encoder.h"

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

// Returns the program's answers to these lines, one line each.
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
        // The reference puts empty ranges at odd positions.
        if (begin == end) continue;
        EXPECT_EQ(line["offsets"][t], Json::array({begin, end})) << "token " << t;
      }
    }
    // The reference omits a field that equals the text, or the decoding with special tokens.
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

// Returns a question and an answer, with additional fields in the answer and in the row.
std::string chat(const std::string& answer, const std::string& row = "") {
  return R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"a")" +
         (answer.empty() ? "" : "," + answer) + "}]" + (row.empty() ? "" : "," + row) + "}";
}

std::vector<std::string> rows_of_all_fields() {
  std::vector<std::string> rows{chat("")};
  for (const char* field :
       {"weight",         "loss_weight", "loss_scale",   "loss",           "loss_mask", "train",
        "training",       "trainable",   "trained",      "train_on_turn",  "masked",    "ignore",
        "end_turn",       "mask",        "train_detail", "refusal",        "prefix",    "partial",
        "canonical_form", "channel",     "recipient",    "function_calls", "parts",     "images"}) {
    for (const char* value : {"0", "1", "true", "false", "0.5", "null", "\"x\"", "\"final\""})
      rows.push_back(chat("\"" + std::string(field) + "\":" + value));
  }
  for (const char* field : {"reasoning_content", "reasoning", "thinking", "thought"}) {
    for (const char* value : {"\"why\"", "7", "\"\"", "null", "true"}) {
      rows.push_back(chat("\"" + std::string(field) + "\":" + value));
      rows.push_back(chat("", "\"" + std::string(field) + "\":" + value));
    }
  }
  for (const char* more :
       {R"("enable_thinking":true)", R"("enable_thinking":false)", R"("enable_thinking":"x")",
        R"("chat_template_kwargs":{"enable_thinking":false})", R"("chat_template_kwargs":{"other":1})",
        R"("chat_template_kwargs":"{\"enable_thinking\":true}")", R"("system":"s")", R"("system_prompt":"s")",
        R"("system_message":"s")", R"("tools":[{"name":"f"}])", R"("functions":[{"name":"f"}])",
        R"("weight":0)", R"("label":false)", R"("labels":[1,2])", R"("mask":"Assistant")",
        R"("images":["i"])", R"("documents":["d"])", R"("system":7)"})
    rows.push_back(chat("", more));
  const std::string call = R"({"name":"f","arguments":"{\"n\":123456789012345678901234567890}"})";
  for (
      const std::string& row : std::initializer_list<std::string>{
          R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","content":"","function_call":)" +
              call + "}]}",
          R"({"messages":[{"role":"user","content":"q"},{"role":"assistant","tool_calls":[{"function":)" +
              call +
              R"(}]},{"role":"tool","content":"1"},{"role":"tool","content":"2"},{"role":"assistant","content":"a"}]})",
          R"({"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"q"}]},{"role":"model","content":7}]})",
          R"({"messages":[{"role":"user","content":null},{"role":"assistant","content":"a"}]})",
          R"({"conversations":[{"from":"human","value":"q"},{"from":"gpt","value":"a","weight":0}]})",
          R"({"instruction":"i","input":3,"output":"o","history":[["a","b"]]})",
          R"({"prompt":[{"role":"user","content":"q"}],"completion":"a"})",
          R"({"prompt":"q","completion":"a","reasoning_content":"w"})"})
    rows.push_back(row);
  return rows;
}

TEST(Encode, EveryFieldGivesTheTokensAndLabelsOfTraining) {
  const std::string model =
      kGolden + "templates/qwen3_nothink/" +
      read_json(kGolden + "templates/qwen3_nothink/template.json")["tokenizer"].get<std::string>();
  const data::TemplateEncoder training({.folder = model, .template_name = "qwen3"});
  const std::vector<std::string> rows = rows_of_all_fields();
  const TemporaryFolder folder("encode_fields");
  std::string text;
  for (const std::string& row : rows) text += row + "\n";
  spill(folder / "in.jsonl", text);
  const Outcome run = trainer("encode " + model + " --template qwen3 --input " + (folder / "in.jsonl"));
  ASSERT_EQ(run.code, 0) << run.err;
  const std::vector<Json> got = lines_of(run.out, "output");
  ASSERT_EQ(got.size(), rows.size());
  int refused = 0, unread = 0;
  const auto file = data::open_rows(folder / "in.jsonl");
  for (std::size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(rows[i]);
    const Json row = file->row(static_cast<std::int64_t>(i));
    std::string why;
    data::RowNotes notes;
    const auto sample = data::convert_row(row, data::detect_format(row, "row"), &why, &notes);
    if (!sample) {
      EXPECT_EQ(got[i].value("reason", ""), why);
      ++refused;
      continue;
    }
    const data::EncodedSample want = training.encode(*sample);
    ASSERT_EQ(want.documents.size(), 1u);
    EXPECT_EQ(got[i].value("input_ids", Json()), Json(want.documents[0].ids));
    EXPECT_EQ(got[i].value("labels", Json()), Json(want.documents[0].labels));
    Json not_read;
    for (const auto& [note, count] : notes) not_read.push_back(note);
    EXPECT_EQ(got[i].value("not_read", Json()), not_read);
    unread += notes.empty() ? 0 : 1;
  }
  EXPECT_GT(refused, 20);
  EXPECT_GT(unread, 0);
}

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
