// Rows with a judged answer: their formats, their encoding and their mismatched answers.
#include <gtest/gtest.h>

#include <string>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "octet/data/encoded.h"
#include "octet/text/chat_template.h"
#include "octet/text/tokenizer.h"

namespace octet::data::judged_test {
namespace {

struct Row {
  const char* name;
  const char* row;
  const char* entry = "";  ///< of dataset_info.json; "": the format is detected
  bool desirable = true;
  std::string system = "";
};

/// Each row asks "2 + 2?" and answers "4".
const Row kRows[] = {
    {"TRL", R"({"prompt": "2 + 2?", "completion": "4", "label": true})"},
    {"TRL, undesirable", R"({"prompt": "2 + 2?", "completion": "4", "label": false})", "", false},
    {"TRL messages",
     R"({"prompt": [{"role": "user", "content": "2 + 2?"}],
         "completion": [{"role": "assistant", "content": "4"}], "label": 0})",
     "", false},
    {"axolotl argilla", R"({"system": "S", "instruction": "2 + 2?", "completion": "4", "label": true})", "",
     true, "S"},
    {"axolotl intel", R"({"system": "S", "question": "2 + 2?", "completion": "4", "label": false})", "",
     false, "S"},
    {"LLaMA-Factory ShareGPT",
     R"({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
         "label": true})",
     R"({"formatting": "sharegpt", "columns": {"messages": "messages", "kto_tag": "label"},
         "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user",
                  "assistant_tag": "assistant"}})"},
    {"LLaMA-Factory Alpaca", R"({"task": "2 + 2?", "answer": "4", "good": "false"})",
     R"({"columns": {"prompt": "task", "response": "answer", "kto_tag": "good"}})", false},
    {"kto_tag without an entry", R"({"instruction": "2 + 2?", "output": "4", "kto_tag": true})"},
    {"messages without an entry",
     R"({"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
         "kto_tag": false})",
     "", false},
};

RowFormat format_of(const Row& row) {
  if (*row.entry == '\0') return detect_judged(Json::parse(row.row), "row");
  return format_of_entry(Json::parse(row.entry), "set", "dataset_info.json", Answers::judged);
}

TEST(Judged, RowsOfOtherProgramsAreReadAlike) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    std::string why;
    const auto sample = convert_row(Json::parse(row.row), format_of(row), &why);
    ASSERT_TRUE(sample) << why;
    ASSERT_EQ(sample->turns.size(), 2u);
    EXPECT_EQ(sample->turns[0].content, "2 + 2?");
    EXPECT_EQ(sample->turns[1].content, "4");
    EXPECT_EQ(sample->desirable, row.desirable);
    EXPECT_EQ(sample->system, row.system);
  }
}

TEST(Judged, RowsThatCannotBeUsedAreNamed) {
  const RowFormat format = detect_judged(Json::parse(kRows[0].row), "row");
  for (const auto& [row, reason] : std::vector<std::pair<const char*, const char*>>{
           {R"({"prompt": "q", "completion": "4"})", "no judgement: column 'label' is missing"},
           {R"({"prompt": "q", "completion": "4", "label": null})", "no judgement: column 'label' is null"},
           {R"({"prompt": "q", "completion": "4", "label": ""})", "no judgement: column 'label' is empty"},
           {R"({"prompt": "q", "completion": "4", "label": "good"})", "'label'"},
           {R"({"prompt": "q", "completion": " ", "label": true})", "the judged answer is empty"},
       }) {
    std::string why;
    EXPECT_FALSE(convert_row(Json::parse(row), format, &why)) << row;
    EXPECT_NE(why.find(reason), std::string::npos) << row << "\n" << why;
  }
}

std::string refused(const std::string& entry, Answers answers) {
  try {
    format_of_entry(Json::parse(entry), "set", "info", answers);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Judged, NeedDataOfTheirStage) {
  const std::string tagged = kRows[6].entry, plain = R"({"columns": {"prompt": "q", "response": "a"}})";
  const std::string ranking =
      R"({"ranking": true, "columns": {"prompt": "q", "chosen": "a", "rejected": "b"}})";
  EXPECT_NE(refused(plain, Answers::judged).find("no 'kto_tag'"), std::string::npos);
  EXPECT_NE(refused(tagged, Answers::single).find("set stage: kto"), std::string::npos);
  EXPECT_NE(refused(ranking, Answers::judged).find("set stage: dpo"), std::string::npos);
  const auto advice = [](const auto& detect, const char* row) {
    try {
      detect(Json::parse(row), "row");
    } catch (const Error& e) {
      return e.problem().fix.substr(e.problem().fix.rfind(": ") + 2);
    }
    return std::string();
  };
  EXPECT_EQ(advice(detect_judged, R"({"prompt": "q", "completion": "a"})"), "sft");
  EXPECT_EQ(advice(detect_judged, R"({"prompt": "q", "chosen": "a", "rejected": "b"})"), "dpo or rm");
  EXPECT_EQ(advice(detect_pairs, R"({"prompt": "q", "completion": "a"})"), "sft");
  EXPECT_EQ(advice(detect_pairs, kRows[0].row), "kto");
  EXPECT_THROW(detect_judged(Json::parse(R"({"words": "q", "label": true})"), "row"), Error);
}

/// Documents with a question of d + 1 tokens 10 d and an answer of 2 tokens 10 d + 1.
Encoded set_of(int documents) {
  Encoded set;
  for (int d = 0; d < documents; ++d) {
    std::vector<std::int32_t> ids(static_cast<std::size_t>(d) + 1, 10 * d);
    std::vector<std::int32_t> labels(ids.size(), -100);
    labels.front() = d % 2 == 0 ? kDesirable : kUndesirable;
    for (int i = 0; i < 2; ++i) ids.push_back(10 * d + 1), labels.push_back(10 * d + 1);
    set.append(ids, labels, d);
  }
  return set;
}

std::vector<std::int32_t> ids_of(const Encoded& set, std::int64_t d) {
  const auto begin = set.ids.begin() + set.begins[static_cast<std::size_t>(d)];
  return {begin, begin + set.length(d)};
}

TEST(Judged, QuestionsGetTheAnswerBeforeThem) {
  const Encoded set = set_of(5), other = mismatched(set, {.batch = 3, .cutoff_len = 100});
  ASSERT_EQ(other.documents(), 5);
  EXPECT_EQ(ids_of(other, 0), (std::vector<std::int32_t>{0, 21, 21}));
  EXPECT_EQ(ids_of(other, 1), (std::vector<std::int32_t>{10, 10, 1, 1}));
  EXPECT_EQ(ids_of(other, 2), (std::vector<std::int32_t>{20, 20, 20, 11, 11}));
  EXPECT_EQ(ids_of(other, 3), (std::vector<std::int32_t>{30, 30, 30, 30, 41, 41}));
  EXPECT_EQ(ids_of(other, 4), (std::vector<std::int32_t>{40, 40, 40, 40, 40, 31, 31}));
  EXPECT_EQ(std::vector(other.labels.begin(), other.labels.begin() + 3),
            (std::vector<std::int32_t>{-100, 21, 21}));
  const Encoded cut = mismatched(set, {.batch = 3, .cutoff_len = 4});
  EXPECT_EQ(ids_of(cut, 4), (std::vector<std::int32_t>{40, 40, 40, 31}));
}

TEST(Judged, OnlyTheLastAnswerIsTrained) {
  text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(OCTET_SOURCE_DIR "/tests/golden/tokenizers/llama3");
  const text::ChatTemplate chat = text::ChatTemplate::find("chatml");
  chat.prepare(tokenizer);
  const text::Conversation talk{
      .messages = {{"user", "Hi"}, {"assistant", "Ho"}, {"user", "2 + 2?"}, {"assistant", "It is 4."}}};
  const text::Example whole = chat.encode_answer(tokenizer, talk, {.cutoff_len = 2048});
  const text::Prompt parts = chat.encode_prompt(tokenizer, talk);
  ASSERT_EQ(whole.outcome, text::Example::Outcome::kept);
  std::vector<text::TokenId> labels(parts.prompt_ids.size(), text::kIgnore);
  labels.insert(labels.end(), parts.response_ids.begin(), parts.response_ids.end());
  EXPECT_EQ(whole.labels, labels);
  EXPECT_FALSE(whole.truncated);
  const text::Example cut = chat.encode_answer(tokenizer, talk, {.cutoff_len = 8});
  EXPECT_EQ(cut.input_ids.size(), 8u);
  EXPECT_TRUE(cut.truncated && cut.answer_truncated);
  EXPECT_GE(cut.labels.back(), 0);
  EXPECT_EQ(chat.encode_answer(tokenizer, talk, {.cutoff_len = 1}).outcome, text::Example::Outcome::dropped);
}

}  // namespace
}  // namespace octet::data::judged_test
