// Rows with a chosen and a rejected answer: their formats, their encoding and their packing.
#include <gtest/gtest.h>

#include <string>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/data/dataset.h"
#include "octet/data/encoded.h"
#include "octet/text/chat_template.h"
#include "octet/text/tokenizer.h"

namespace octet::data::pairs_test {
namespace {

struct Row {
  const char* name;
  const char* row;
  const char* entry = "";  ///< of dataset_info.json; "": the format is detected
  std::string system = "";
  std::size_t turns = 2;
};

/// Each row asks "2 + 2?" last. The chosen answer is 4, the rejected one 5.
const Row kRows[] = {
    {"TRL", R"({"prompt": "2 + 2?", "chosen": "4", "rejected": "5"})"},
    {"TRL messages",
     R"({"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": "2 + 2?"}],
         "chosen": [{"role": "assistant", "content": "4"}], "rejected": [{"role": "assistant", "content": "5"}]})",
     "", "S"},
    {"TRL without prompt",
     R"({"chosen": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
         "rejected": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]})"},
    {"axolotl ultra",
     R"({"system": "S", "prompt": "2 + 2?",
         "chosen": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "4"}],
         "rejected": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "content": "5"}]})",
     "", "S"},
    {"axolotl intel", R"({"system": "S", "question": "2 + 2?", "chosen": "4", "rejected": "5"})", "", "S"},
    {"axolotl icr", R"({"system": "S", "input": "2 + 2?", "chosen": "4", "rejected": "5"})", "", "S"},
    {"axolotl chat template",
     R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"},
                      {"role": "user", "content": "2 + 2?"}],
         "chosen": {"role": "assistant", "content": "4"}, "rejected": {"role": "assistant", "content": "5"}})",
     "", "", 4},
    {"LLaMA-Factory Alpaca",
     R"({"task": "2 +", "more": "2?", "right": "4", "wrong": "5", "past": [["Hi", "Ho"]]})",
     R"({"ranking": true, "columns": {"prompt": "task", "query": "more", "history": "past", "chosen": "right",
         "rejected": "wrong"}})",
     "", 4},
    {"LLaMA-Factory ShareGPT",
     R"({"conversations": [{"from": "human", "value": "2 + 2?"}],
         "chosen": {"from": "gpt", "value": "4"}, "rejected": {"from": "gpt", "value": "5"}})",
     R"({"ranking": true, "formatting": "sharegpt",
         "columns": {"messages": "conversations", "chosen": "chosen", "rejected": "rejected"}})"},
    {"LLaMA-Factory tags",
     R"({"talk": [{"who": "U", "text": "2 + 2?"}], "a": {"who": "A", "text": "4"}, "b": {"who": "A", "text": "5"}})",
     R"({"ranking": true, "formatting": "sharegpt",
         "columns": {"messages": "talk", "chosen": "a", "rejected": "b"},
         "tags": {"role_tag": "who", "content_tag": "text", "user_tag": "U", "assistant_tag": "A"}})"},
};

RowFormat format_of(const Row& row) {
  const Json json = Json::parse(row.row);
  if (*row.entry == '\0') return detect_pairs(json, "row");
  return format_of_entry(Json::parse(row.entry), "set", "dataset_info.json", Answers::pairs);
}

TEST(Pairs, OfOtherProgramsAreReadAlike) {
  for (const Row& row : kRows) {
    SCOPED_TRACE(row.name);
    std::string why;
    const auto sample = convert_row(Json::parse(row.row), format_of(row), &why);
    ASSERT_TRUE(sample) << why;
    ASSERT_EQ(sample->turns.size(), row.turns);
    std::string question = sample->turns[row.turns - 2].content;
    std::erase(question, '\n');
    std::erase(question, ' ');
    EXPECT_EQ(question, "2+2?");
    EXPECT_EQ(sample->turns.back().role, "assistant");
    EXPECT_EQ(sample->turns.back().content, "4");
    ASSERT_TRUE(sample->rejected);
    EXPECT_EQ(sample->rejected->role, "assistant");
    EXPECT_EQ(sample->rejected->content, "5");
    EXPECT_EQ(sample->system, row.system);
  }
}

TEST(Pairs, ThatCannotBeUsedGiveTheReason) {
  const std::pair<const char*, const char*> rows[] = {
      {R"({"prompt": "q", "chosen": "4"})", "no rejected answer: column 'rejected' is missing"},
      {R"({"prompt": "q", "chosen": null, "rejected": "5"})", "no chosen answer: column 'chosen' is null"},
      {R"({"prompt": "q", "chosen": "4", "rejected": "4"})", "the chosen and the rejected answer are equal"},
      {R"({"prompt": null, "chosen": "4", "rejected": "5"})", "no question"},
      {R"({"prompt": "q", "chosen": "4", "rejected": "5", "reasoning_content": "t"})", "has two answers"},
      {R"({"prompt": "q", "chosen": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
           "rejected": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]})",
       "different questions"},
      {R"({"prompt": "q", "chosen": [{"role": "user", "content": "a"}], "rejected": "5"})", "out of order"},
  };
  const RowFormat format = detect_pairs(Json::parse(kRows[0].row), "row");
  for (const auto& [row, reason] : rows) {
    std::string why;
    EXPECT_FALSE(convert_row(Json::parse(row), format, &why)) << row;
    EXPECT_NE(why.find(reason), std::string::npos) << row << "\n" << why;
  }
}

TEST(Pairs, WithMessagesAsAnswersDoNotLoseAPartOfTheQuestion) {
  const Json row = Json::parse(R"({"instruction": "Add.", "input": "2, 2",
      "chosen": {"role": "assistant", "content": "4"}, "rejected": {"role": "assistant", "content": "5"}})");
  std::string why;
  EXPECT_FALSE(convert_row(row, detect_pairs(row, "row"), &why));
  EXPECT_NE(why.find("'input' cannot be combined with messages"), std::string::npos) << why;
}

TEST(Pairs, NeedDataOfTheirStage) {
  const Json plain = Json::parse(R"({"columns": {"prompt": "q", "response": "a"}})");
  const Json ranking = Json::parse(kRows[7].entry);
  EXPECT_THROW(format_of_entry(plain, "set", "info", Answers::pairs), Error);
  EXPECT_THROW(format_of_entry(ranking, "set", "info", Answers::single), Error);
  EXPECT_THROW(format_of_entry(Json::parse(R"({"ranking": true})"), "set", "info", Answers::pairs), Error);
  EXPECT_THROW(detect_pairs(Json::parse(R"({"prompt": "q", "response": "a"})"), "row"), Error);
  EXPECT_THROW(detect_pairs(Json::parse(R"({"chosen": "q", "rejected": "a"})"), "row"), Error);
}

Encoded set_of(const std::vector<int>& lengths) {
  Encoded set;
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    const std::vector<std::int32_t> ids(static_cast<std::size_t>(lengths[d]), static_cast<std::int32_t>(d));
    set.append(ids, ids, static_cast<std::int64_t>(d / 2));
  }
  return set;
}

TEST(Pairs, StayTogether) {
  const Encoded set = set_of({3, 4, 5, 5, 2, 1, 6, 1});
  const Items each = one_each_pair(set);
  EXPECT_TRUE(each.pairs);
  EXPECT_EQ(each.size(), 4);
  EXPECT_EQ(each.tokens(set, 1), 10);
  EXPECT_EQ(each.most_documents(), 2);
  const Items packed = pack_pairs(set, 10);
  EXPECT_TRUE(packed.pairs);
  ASSERT_EQ(packed.size(), 3);
  std::int64_t documents = 0;
  for (std::int64_t i = 0; i < packed.size(); ++i) {
    EXPECT_LE(packed.tokens(set, i), 10);
    const std::int64_t begin = packed.begins[static_cast<std::size_t>(i)];
    const std::int64_t end = packed.begins[static_cast<std::size_t>(i) + 1];
    ASSERT_EQ((end - begin) % 2, 0);
    for (std::int64_t j = begin; j < end; j += 2) {
      const std::int64_t first = packed.documents[static_cast<std::size_t>(j)];
      EXPECT_EQ(first % 2, 0);
      EXPECT_EQ(packed.documents[static_cast<std::size_t>(j) + 1], first + 1);
    }
    documents += end - begin;
  }
  EXPECT_EQ(documents, 8);
}

struct Written {
  text::Tokenizer tokenizer =
      text::Tokenizer::from_folder(OCTET_SOURCE_DIR "/tests/golden/tokenizers/llama3");
  text::ChatTemplate chat = text::ChatTemplate::find("chatml");
  Written() { chat.prepare(tokenizer); }
  text::AnswerPair pair(const std::string& chosen, const std::string& rejected, std::int64_t cutoff) const {
    const text::Conversation talk{.messages = {{"user", "Name three colours."}, {"assistant", chosen}}};
    return chat.encode_pair(tokenizer, talk, {"assistant", rejected}, {.cutoff_len = cutoff});
  }
};

TEST(Pairs, HaveEqualQuestionsThatAreNotTrained) {
  const Written written;
  const text::AnswerPair pair = written.pair("Red, green and blue.", "No.", 2048);
  ASSERT_EQ(pair.outcome, text::Example::Outcome::kept);
  const auto question = [](const text::Example& example) {
    std::vector<text::TokenId> ids;
    for (std::size_t i = 0; i < example.labels.size() && example.labels[i] < 0; ++i)
      ids.push_back(example.input_ids[i]);
    return ids;
  };
  EXPECT_EQ(question(pair.chosen), question(pair.rejected));
  EXPECT_NE(pair.chosen.input_ids, pair.rejected.input_ids);
  EXPECT_FALSE(pair.chosen.truncated);
  // Alone, each answer has the tokens and labels of supervised fine-tuning.
  const text::Conversation talk{
      .messages = {{"user", "Name three colours."}, {"assistant", "Red, green and blue."}}};
  const text::Example alone = written.chat.encode_example(written.tokenizer, talk, {.cutoff_len = 2048});
  EXPECT_EQ(std::vector(alone.input_ids.begin(),
                        alone.input_ids.begin() + static_cast<std::ptrdiff_t>(pair.chosen.input_ids.size())),
            pair.chosen.input_ids);
}

TEST(Pairs, AreCutTogether) {
  const Written written;
  const text::AnswerPair whole = written.pair("Red, green and blue.", "No.", 2048);
  const auto most = static_cast<std::int64_t>(whole.chosen.input_ids.size()) - 2;
  const text::AnswerPair cut = written.pair("Red, green and blue.", "No.", most);
  ASSERT_EQ(cut.outcome, text::Example::Outcome::kept);
  EXPECT_EQ(static_cast<std::int64_t>(cut.chosen.input_ids.size()), most);
  EXPECT_TRUE(cut.chosen.truncated);
  const text::AnswerPair equal = written.pair("Red, green and blue.", "Red, green and yellow.", 12);
  EXPECT_EQ(equal.outcome, text::Example::Outcome::dropped);
  EXPECT_NE(equal.reason.find("equal"), std::string::npos) << equal.reason;
}

}  // namespace
}  // namespace octet::data::pairs_test
