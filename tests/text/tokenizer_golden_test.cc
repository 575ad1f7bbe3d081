// Every line of the reference's encodings, for each shape of tokenizer file.
#include <gtest/gtest.h>

#include <array>

#include "golden.h"
#include "octet/base/json.h"
#include "octet/text/tokenizer.h"

namespace octet::text::tokenizer_golden_test {
namespace {

std::string text_of(const Json& c) {
  if (c.contains("text")) return c["text"].get<std::string>();
  std::string out;
  for (int i = 0; i < c["repeat"][1].get<int>(); ++i) out += c["repeat"][0].get<std::string>();
  return out;
}

/// Returns the ids without the ids that the post-processor adds. Long ids of repeated texts are stored as a
/// block and its count.
std::vector<TokenId> plain_ids(const Json& c) {
  std::vector<TokenId> out = ids_of(c["ids_plain"]);
  if (!c.contains("ids_block")) return out;
  for (int i = 0; i < c["ids_count"].get<int>(); ++i) {
    for (const TokenId id : ids_of(c["ids_block"])) out.push_back(id);
  }
  for (const TokenId id : ids_of(c["ids_end"])) out.push_back(id);
  return out;
}

/// Returns the ids with the ids that the post-processor adds. Golden files store these separately.
std::vector<TokenId> whole_ids(const Json& c) {
  std::vector<TokenId> out = ids_of(c["around"][0]);
  for (const TokenId id : plain_ids(c)) out.push_back(id);
  for (const TokenId id : ids_of(c["around"][1])) out.push_back(id);
  return out;
}

std::uint32_t crc32(const std::string& bytes) {
  std::uint32_t crc = 0xFFFFFFFFu;
  for (const char c : bytes) {
    crc ^= static_cast<unsigned char>(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320u : 0);
  }
  return ~crc;
}

std::string streamed(const Tokenizer& tokenizer, const std::vector<TokenId>& ids, bool skip) {
  StreamDecoder decoder(tokenizer, skip);
  std::string out;
  for (const TokenId id : ids) out += decoder.push(id);
  return out + decoder.finish();
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  std::string folder_ = golden_path(std::string("tokenizers/") + GetParam());
  Tokenizer tokenizer_ = Tokenizer::from_folder(folder_);
};

TEST_P(TokenizerGolden, EveryTextGivesTheSameIds) {
  const int n = each_case(folder_ + "/cases.jsonl", [&](const Json& c, const std::string& where) {
    const std::string text = text_of(c);
    EXPECT_EQ(tokenizer_.encode(text).ids, plain_ids(c)) << where;
    if (c.contains("around")) {
      EXPECT_EQ(tokenizer_.encode(text, {.add_special = true}).ids, whole_ids(c)) << where;
    }
    if (c.contains("ids_split")) {
      EXPECT_EQ(tokenizer_.encode(text, {.split_special = true}).ids, ids_of(c["ids_split"])) << where;
    }
  });
  EXPECT_GT(n, 400);
}

TEST_P(TokenizerGolden, EveryTokenCoversTheSameBytes) {
  each_case(folder_ + "/cases.jsonl", [&](const Json& c, const std::string& where) {
    if (!c.contains("offsets")) return;
    const std::string text = text_of(c);
    const Encoding plain = tokenizer_.encode(text, {.offsets = true});
    ASSERT_EQ(2 * plain.offsets.size(), c["offsets"].size()) << where;
    for (std::size_t i = 0; i < plain.offsets.size(); ++i) {
      const Span want{c["offsets"][2 * i].get<std::uint32_t>(), c["offsets"][2 * i + 1].get<std::uint32_t>()};
      if (want.begin == want.end) continue;  // the reference puts empty ranges at odd positions
      EXPECT_EQ(std::pair(plain.offsets[i].begin, plain.offsets[i].end), std::pair(want.begin, want.end))
          << where << " token " << i;
    }
    EXPECT_EQ(tokenizer_.encode(text, {.add_special = true, .offsets = true}).offsets.size(),
              tokenizer_.encode(text, {.add_special = true}).ids.size());
  });
}

TEST_P(TokenizerGolden, EveryTextDecodesTheSame) {
  each_case(folder_ + "/cases.jsonl", [&](const Json& c, const std::string& where) {
    const std::string text = text_of(c);
    const std::vector<TokenId> plain = plain_ids(c);
    if (c.contains("repeat")) {
      const std::string back = tokenizer_.decode(plain);
      EXPECT_EQ(back == text, c["decoded_same"].get<bool>()) << where;
      if (back != text) {
        EXPECT_EQ(back.size(), c["decoded_length"].get<std::size_t>()) << where;
        EXPECT_EQ(crc32(back), c["decoded_crc32"].get<std::uint32_t>()) << where;
      }
      return;
    }
    if (c.contains("decoded_varies")) return;
    // Golden files omit a field that equals the text, or the decoding with special tokens.
    const std::string decoded = json_string(c, "decoded", text, where);
    const std::string skipped = json_string(c, "decoded_skip", decoded, where);
    EXPECT_EQ(tokenizer_.decode(plain), decoded) << where;
    EXPECT_EQ(tokenizer_.decode(whole_ids(c), true), skipped) << where;
    EXPECT_EQ(streamed(tokenizer_, plain, false), decoded) << where;
    EXPECT_EQ(streamed(tokenizer_, whole_ids(c), true), skipped) << where;
  });
}

TEST_P(TokenizerGolden, EveryListOfIdsDecodesTheSame) {
  const int n = each_case(folder_ + "/decode.jsonl", [&](const Json& c, const std::string& where) {
    const std::vector<TokenId> ids = ids_of(c["ids"]);
    const std::string decoded = c["decoded"].get<std::string>();
    const std::string skipped = json_string(c, "decoded_skip", decoded, where);
    EXPECT_EQ(tokenizer_.decode(ids), decoded) << where;
    EXPECT_EQ(tokenizer_.decode(ids, true), skipped) << where;
    EXPECT_EQ(streamed(tokenizer_, ids, false), decoded) << where;
    EXPECT_EQ(streamed(tokenizer_, ids, true), skipped) << where;
  });
  EXPECT_GT(n, 10);
}

INSTANTIATE_TEST_SUITE_P(Shapes, TokenizerGolden,
                         testing::Values("llama3", "qwen2", "gpt2", "gpt2_prefix", "qwen35", "tekken",
                                         "sequence", "added", "gemma", "llama2", "mistral", "han", "nfkc"),
                         [](const auto& shape) { return std::string(shape.param); });

}  // namespace
}  // namespace octet::text::tokenizer_golden_test
