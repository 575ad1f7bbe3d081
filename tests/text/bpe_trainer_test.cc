#include "octet/text/bpe_trainer.h"

#include <gtest/gtest.h>

#include "folder.h"
#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/text/tokenizer.h"

namespace octet::text::bpe_trainer_test {
namespace {

std::vector<std::string> sample() {
  std::vector<std::string> out;
  for (int i = 0; i < 300; ++i) {
    out.push_back("Sort these words: pear, apple, caf\xC3\xA9 and " + std::to_string(i) +
                  " plums.\n\nSorted: apple\n");
  }
  return out;
}

TEST(BpeTrainer, WhatItWritesIsReadBack) {
  const TestFolder folder;
  const int size = train_byte_bpe(sample(), {.vocab_size = 310}, folder.path() + "/a/b");
  EXPECT_EQ(size, 310);
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path() + "/a/b");
  EXPECT_EQ(tokenizer.vocab_size(), size);
  EXPECT_EQ(tokenizer.eos_token(), "<|endoftext|>");
  EXPECT_EQ(tokenizer.eos_id(), size - 3);
  EXPECT_EQ(tokenizer.pad_id(), size - 3);
  EXPECT_EQ(tokenizer.bos_id(), -1);
  EXPECT_EQ(tokenizer.token_to_id("<|im_end|>"), size - 1);
  for (const std::string& text : sample()) {
    const auto ids = tokenizer.encode(text).ids;
    EXPECT_EQ(tokenizer.decode(ids), text);
    EXPECT_LT(ids.size() * 2, text.size());
  }
  // Bytes that did not occur in training are pieces, too.
  const std::string odd = "\xF0\x9F\x98\x80 \x01 \xE4\xB8\xAD<|im_start|>";
  EXPECT_EQ(tokenizer.decode(tokenizer.encode(odd).ids), odd);
}

TEST(BpeTrainer, TheMostFrequentPairIsMergedFirst) {
  const TestFolder folder;
  const std::vector<std::string> texts{"hug hug hug pug pug hugs hugs bun bun"};
  train_byte_bpe(texts, {.vocab_size = 265, .special_tokens = {}, .eos_token = "", .pad_token = ""},
                 folder.path());
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  // By hand: u+g occurs 7 times. Then blank+h occurs 4 times, and joins "ug" (4). h+ug occurs once, below the
  // limit of two.
  EXPECT_EQ(tokenizer.id_to_token(256), "ug");
  EXPECT_EQ(tokenizer.encode(" hug").ids.size(), 1u);
  EXPECT_EQ(tokenizer.encode("pugs").ids.size(), 3u);
}

TEST(BpeTrainer, TheLengthOfATextIsThatOfTheModel) {
  const TestFolder folder;
  train_byte_bpe(sample(), {.vocab_size = 300, .max_length = 512}, folder.path());
  EXPECT_EQ(read_json(folder.path() + "/tokenizer_config.json")["model_max_length"], 512);
}

TEST(BpeTrainer, TheSameTextsGiveTheSameFiles) {
  const TestFolder a, b;
  train_byte_bpe(sample(), {.vocab_size = 400}, a.path());
  train_byte_bpe(sample(), {.vocab_size = 400}, b.path());
  for (const char* name : {"/tokenizer.json", "/tokenizer_config.json"}) {
    EXPECT_EQ(read_file(a.path() + name), read_file(b.path() + name));
  }
}

TEST(BpeTrainer, APatternOfOnesOwnIsKept) {
  const TestFolder folder;
  const std::vector<std::string> texts{"aXbXc aXbXc aXbXc"};
  train_byte_bpe(texts, {.vocab_size = 300, .pattern = "X|[^X]+"}, folder.path());
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.token_to_id("aX"), -1);
  EXPECT_EQ(tokenizer.decode(tokenizer.encode("aXbXc").ids), "aXbXc");
}

TEST(BpeTrainer, ASpecialTokenIsNeverLearnt) {
  const TestFolder folder;
  const std::vector<std::string> texts{"ab ab ab ab ab"};
  train_byte_bpe(texts, {.vocab_size = 280, .special_tokens = {"ab"}, .eos_token = "ab", .pad_token = ""},
                 folder.path());
  const Tokenizer tokenizer = Tokenizer::from_folder(folder.path());
  EXPECT_EQ(tokenizer.encode("ab").ids, std::vector<TokenId>{tokenizer.eos_id()});
}

TEST(BpeTrainer, WhatCannotBeIsRefused) {
  const TestFolder folder;
  const std::vector<std::string> texts{"a"}, bad{"\xFF"};
  EXPECT_THROW(train_byte_bpe(texts, {.vocab_size = 258}, folder.path()), Error);
  EXPECT_THROW(train_byte_bpe(texts, {.special_tokens = {"x", "x"}}, folder.path()), Error);
  EXPECT_THROW(train_byte_bpe(texts, {.special_tokens = {""}}, folder.path()), Error);
  EXPECT_THROW(train_byte_bpe(texts, {.bos_token = "<none>"}, folder.path()), Error);
  EXPECT_THROW(train_byte_bpe(bad, {}, folder.path()), Error);
  EXPECT_THROW(train_byte_bpe(texts, {.pattern = "("}, folder.path()), Error);
}

}  // namespace
}  // namespace octet::text::bpe_trainer_test
