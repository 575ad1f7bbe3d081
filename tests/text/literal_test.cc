// Special tokens in user texts: tokens by default, plain text with split_special_tokens.
#include <gtest/gtest.h>

#include <algorithm>

#include "golden.h"
#include "octet/base/json.h"
#include "octet/text/chat_template.h"

namespace octet::text::literal_test {
namespace {

class Literal : public testing::TestWithParam<const char*> {
 protected:
  Literal() { template_.prepare(tokenizer_); }

  std::int64_t specials(const std::vector<TokenId>& ids) const {
    return std::ranges::count_if(ids, [this](TokenId id) { return tokenizer_.is_special(id); });
  }
  Example encode(const std::string& typed, bool split) const {
    TemplateOptions options;
    options.split_special_tokens = split;
    const Conversation conversation{
        .messages = {{"user", "a " + typed + " b"}, {"assistant", "c " + typed + " d"}},
        .system = "e " + typed + " f"};
    return template_.encode_example(tokenizer_, conversation, options);
  }

  std::string folder_ = golden_path(std::string("templates/") + GetParam());
  Json about_ = read_json(folder_ + "/template.json");
  ChatTemplate template_ = ChatTemplate::find(about_["template"].get<std::string>());
  Tokenizer tokenizer_ = Tokenizer::from_folder(folder_ + "/" + about_["tokenizer"].get<std::string>());
};

TEST_P(Literal, OnlyTheTemplatesOwnSpecialTokensRemain) {
  const std::string eos = tokenizer_.eos_token();
  const std::int64_t own = specials(encode("word", true).input_ids);
  const Example as_token = encode(eos, false), as_text = encode(eos, true);
  EXPECT_GT(specials(as_token.input_ids), own) << "what was typed becomes a token";
  EXPECT_EQ(specials(as_text.input_ids), own) << tokenizer_.decode(as_text.input_ids);
  EXPECT_EQ(encode("word", false).input_ids, encode("word", true).input_ids);
  // The text is equal; only its tokens differ.
  const std::string text = tokenizer_.decode(as_text.input_ids);
  EXPECT_NE(text.find("a " + eos), std::string::npos) << text;
  EXPECT_NE(text.find("c " + eos), std::string::npos) << text;
  EXPECT_NE(text.find("e " + eos), std::string::npos) << text;
}

INSTANTIATE_TEST_SUITE_P(Rows, Literal,
                         testing::Values("llama3", "qwen", "chatml", "gemma", "gemma2", "mistral", "llama2",
                                         "vicuna", "deepseek3", "phi"),
                         [](const auto& row) { return std::string(row.param); });

TEST(Literal, AStretchOfATextIsKeptApart) {
  const Tokenizer tokenizer = Tokenizer::from_folder(golden_path("tokenizers/llama3"));
  const std::string eos = tokenizer.eos_token(), text = "x" + eos + "y" + eos;
  const auto last = static_cast<std::uint32_t>(text.size());
  const auto count = [&](std::vector<Span> literal) {
    EncodeOptions options;
    options.literal = literal;
    const auto ids = tokenizer.encode(text, options).ids;
    EXPECT_EQ(tokenizer.decode(ids), text);
    return std::ranges::count(ids, tokenizer.eos_id());
  };
  EXPECT_EQ(count({}), 2);
  EXPECT_EQ(count({{0, 3}}), 1);
  EXPECT_EQ(count({{last - 1, last}}), 1);
  EXPECT_EQ(count({{0, 2}, {last - 2, last}}), 0);
  EXPECT_EQ(count({{0, 1}}), 2) << "the stretch ends before the token";
}

}  // namespace
}  // namespace octet::text::literal_test
