// Truncation of a question and its answer that do not fit together.
#include <gtest/gtest.h>

#include "folder.h"
#include "octet/text/chat_template.h"

namespace octet::text::cutoff_test {
namespace {

struct Cut {
  int question, answer, room;      // tokens
  int kept_question, kept_answer;  // the result of LLaMA-Factory's infer_seqlen
};
/// Each line follows from three rules. An answer below half the room stays whole. Otherwise a question below
/// half the room stays whole. Otherwise both get their share, rounded down for the answer.
const Cut kCuts[] = {
    {8, 3, 8, 5, 3},   // the answer is below half
    {8, 4, 8, 6, 2},   // exactly half is not below: 8 * 4 / 12 = 2.67
    {3, 8, 8, 3, 5},   // the question is below half
    {4, 8, 8, 3, 5},   // exactly half is not: 8 * 8 / 12 = 5.33
    {5, 5, 8, 4, 4},   // shares: 8 * 5 / 10
    {7, 9, 10, 5, 5},  // 10 * 9 / 16 = 5.63
};

TEST(Cutoff, QuestionsAndAnswersAreCutByTheirShares) {
  const TestFolder folder;
  Tokenizer tokenizer = Tokenizer::from_folder(folder.write(
      "tokenizer.json",
      R"({"version": "1.0", "added_tokens": [{"id": 2, "content": "</s>", "special": true, "single_word": false,
          "lstrip": false, "rstrip": false, "normalized": false}], "normalizer": null, "pre_tokenizer": null,
          "post_processor": null, "decoder": {"type": "Fuse"},
          "model": {"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": []}})"));
  tokenizer.set_eos_token("</s>");
  const ChatTemplate empty = ChatTemplate::find("empty");
  for (const Cut& cut : kCuts) {
    // The end of the sequence is a separate token after the truncated text.
    const Example example = empty.encode_example(
        tokenizer,
        {.messages = {{"user", std::string(static_cast<std::size_t>(cut.question), 'a')},
                      {"assistant", std::string(static_cast<std::size_t>(cut.answer), 'b')}}},
        {.cutoff_len = cut.room + (empty.efficient_eos() ? 1 : 0)});
    std::vector<TokenId> ids(static_cast<std::size_t>(cut.kept_question), 0);
    ids.insert(ids.end(), static_cast<std::size_t>(cut.kept_answer), 1);
    if (empty.efficient_eos()) ids.push_back(2);
    EXPECT_EQ(example.input_ids, ids) << cut.question << " and " << cut.answer << " tokens for " << cut.room;
    EXPECT_TRUE(example.truncated) << cut.question << " and " << cut.answer << " tokens for " << cut.room;
    EXPECT_EQ(example.answer_truncated, cut.kept_answer < cut.answer)
        << cut.question << " and " << cut.answer;
  }
}

}  // namespace
}  // namespace octet::text::cutoff_test
