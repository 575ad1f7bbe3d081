// Other files than tokenizer.json: tokens, roles and templates are equal to transformers 5.
#include <gtest/gtest.h>

#include "folder.h"
#include "golden.h"
#include "octet/base/error.h"
#include "octet/text/tokenizer.h"

namespace octet::text::tokenizer_sources_test {
namespace {

constexpr const char* kFile =
    R"({"version": "1.0", "added_tokens": [{"id": 4, "content": "<s>", "special": true}], "normalizer": null,
        "pre_tokenizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "</s>": 3}, "merges": ["a b"]}})";
constexpr const char* kBos = R"("4": {"content": "<s>", "special": true})";

struct Folder : TestFolder {
  Folder() { write("tokenizer.json", kFile); }
  Folder& with(const std::string& name, const std::string& text) {
    write(name, text);
    return *this;
  }
  /// Opens the folder and stores the printed text in `said`.
  Tokenizer open() {
    testing::internal::CaptureStderr();
    Tokenizer tokenizer = Tokenizer::from_folder(path());
    said = testing::internal::GetCapturedStderr();
    return tokenizer;
  }
  std::string said;
};

std::string decoder(const std::string& tokens) {
  return std::string(R"({"added_tokens_decoder": {)") + kBos + (tokens.empty() ? "" : ", " + tokens) + "}}";
}

TEST(TokenizerSources, FilesThatAgreeSayNothing) {
  Folder folder;
  EXPECT_EQ(folder.open().vocab_size(), 5);
  EXPECT_EQ(folder.said, "");
  folder.with("tokenizer_config.json", decoder(""))
      .with("special_tokens_map.json", R"({"bos_token": "<s>"})");
  EXPECT_EQ(folder.open().vocab_size(), 5);
  EXPECT_EQ(folder.said, "");
}

TEST(TokenizerSources, TokensOfTheDecoderAloneAreAdded) {
  Folder folder;
  folder.with("tokenizer_config.json", decoder(R"("5": {"content": "<|note|>", "special": true})"));
  const Tokenizer tokenizer = folder.open();
  EXPECT_EQ(tokenizer.encode("a<|note|>b").ids, (std::vector<TokenId>{0, 5, 1}));
  EXPECT_TRUE(tokenizer.is_special(5));
  EXPECT_NE(folder.said.find("'<|note|>'"), std::string::npos) << folder.said;
}

// The library gives a new token the next id, independent of the id in the file.
TEST(TokenizerSources, NewTokensGetTheNextIds) {
  Folder folder;
  folder.with("tokenizer_config.json",
              decoder(R"("9": {"content": "<y>"}, "7": {"content": "<x>"}, "3": {"content": "</s>"})"));
  const Tokenizer tokenizer = folder.open();
  EXPECT_EQ(tokenizer.token_to_id("<x>"), 5);
  EXPECT_EQ(tokenizer.token_to_id("<y>"), 6);
  EXPECT_EQ(tokenizer.encode("a</s>").ids, (std::vector<TokenId>{0, 3})) << "a piece that becomes a token";
  EXPECT_NE(folder.said.find("gives ids to 2 tokens"), std::string::npos) << folder.said;
}

TEST(TokenizerSources, FlagsOfTheDecoderCount) {
  Folder folder;
  folder.with("tokenizer_config.json",
              R"({"added_tokens_decoder": {"4": {"content": "<s>", "special": true, "rstrip": true}}})");
  EXPECT_EQ(folder.open().encode("<s> a").ids, (std::vector<TokenId>{4, 0}));
  EXPECT_NE(folder.said.find("with other flags"), std::string::npos) << folder.said;
}

TEST(TokenizerSources, ATokenThatTheDecoderLacksStaysAndIsSaid) {
  Folder folder;
  folder.with("tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  EXPECT_EQ(folder.open().encode("<s>a").ids, (std::vector<TokenId>{4, 0}));
  EXPECT_NE(folder.said.find("'<s>'"), std::string::npos) << folder.said;
}

TEST(TokenizerSources, OldFoldersHaveAddedTokensInAFileOfTheirOwn) {
  Folder folder;
  folder.with("added_tokens.json", R"({"<x>": 5})");
  EXPECT_EQ(folder.open().encode("a<x>").ids, (std::vector<TokenId>{0, 5}));
  EXPECT_NE(folder.said.find("added_tokens.json"), std::string::npos) << folder.said;
}

TEST(TokenizerSources, SpecialTokensBecomeTokens) {
  Folder folder;
  folder.with(
      "tokenizer_config.json",
      R"({"eos_token": "</s>", "extra_special_tokens": ["<img>"], "pad_token": {"content": "<pad>"}})");
  const Tokenizer tokenizer = folder.open();
  EXPECT_EQ(tokenizer.eos_id(), 3);
  EXPECT_EQ(tokenizer.pad_id(), 5);
  EXPECT_EQ(tokenizer.encode("</s><img><pad>").ids, (std::vector<TokenId>{3, 6, 5}));
  EXPECT_TRUE(tokenizer.is_special(3) && tokenizer.is_special(6));
  EXPECT_NE(folder.said.find("'<img>'"), std::string::npos) << folder.said;
  // A model without a row for the token does not get it.
  folder.with("config.json", R"({"vocab_size": 5})");
  const Tokenizer small = folder.open();
  EXPECT_EQ(small.pad_id(), -1);
  EXPECT_EQ(small.vocab_size(), 5);
  EXPECT_NE(folder.said.find("no row"), std::string::npos) << folder.said;
}

TEST(TokenizerSources, OfTwoRolesTheOneOfTransformersCounts) {
  Folder folder;
  folder.with("special_tokens_map.json", R"({"eos_token": "<s>"})");
  EXPECT_EQ(folder.open().eos_token(), "<s>");
  EXPECT_EQ(folder.said, "");
  folder.with("tokenizer_config.json", R"({"eos_token": "</s>"})");
  EXPECT_EQ(folder.open().eos_token(), "<s>") << "without a decoder the map counts";
  EXPECT_NE(folder.said.find("name different tokens as eos_token"), std::string::npos) << folder.said;
  folder.with("tokenizer_config.json",
              decoder("").substr(0, decoder("").size() - 1) + R"(, "eos_token": "</s>"})");
  EXPECT_EQ(folder.open().eos_token(), "</s>");
  EXPECT_NE(folder.said.find("name different tokens as eos_token"), std::string::npos) << folder.said;
}

TEST(TokenizerSources, TwoChatTemplatesThatDifferAreSaid) {
  Folder folder;
  folder.with("chat_template.jinja", "{{ 1 }}\n")
      .with("tokenizer_config.json", R"({"chat_template": "{{ 1 }}"})");
  folder.open();
  EXPECT_EQ(folder.said, "");
  folder.with("tokenizer_config.json", R"({"chat_template": "{{ 2 }}"})");
  folder.open();
  EXPECT_NE(folder.said.find("chat_template.jinja"), std::string::npos) << folder.said;
}

TEST(TokenizerSources, ABrokenDecoderIsRefused) {
  for (const char* tokens : {R"("x": {"content": "<x>"})", R"("-1": {"content": "<x>"})", R"("5": "<x>")",
                             R"("5": {"content": 3})", R"("5": {"content": "<x>", "lstrip": "no"})"}) {
    Folder folder;
    folder.with("tokenizer_config.json", decoder(tokens));
    try {
      Tokenizer::from_folder(folder.path());
      ADD_FAILURE() << tokens;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(std::string(error.what()).find("tokenizer_config.json"), std::string::npos) << error.what();
    }
  }
}

TEST(TokenizerSources, AWrongTypeIsRefusedByFileAndKey) {
  struct Row {
    const char *file, *text, *key;
  };
  for (const Row& row :
       {Row{"tokenizer_config.json", R"({"eos_token": 3})", "eos_token"},
        {"tokenizer_config.json", R"({"pad_token": {"text": "<s>"}})", "pad_token"},
        {"tokenizer_config.json", R"({"add_bos_token": "true"})", "add_bos_token"},
        {"tokenizer_config.json", R"({"model_max_length": "512"})", "model_max_length"},
        {"tokenizer_config.json", R"({"chat_template": 3})", "chat_template"},
        {"tokenizer_config.json", R"({"added_tokens_decoder": []})", "added_tokens_decoder"},
        {"tokenizer_config.json", "[]", "an object"},
        {"special_tokens_map.json", R"({"bos_token": ["<s>"]})", "bos_token"},
        {"special_tokens_map.json", R"({"additional_special_tokens": "<s>"})", "additional_special_tokens"},
        {"special_tokens_map.json", "3", "an object"},
        {"added_tokens.json", R"({"<x>": "5"})", "<x>"},
        {"added_tokens.json", R"({"<x>": -1})", "<x>"},
        {"added_tokens.json", R"({"<x>": 5.5})", "<x>"},
        {"added_tokens.json", R"(["<x>"])", "an object"}}) {
    SCOPED_TRACE(row.file + std::string(": ") + row.text);
    Folder folder;
    folder.with(row.file, row.text);
    try {
      Tokenizer::from_folder(folder.path());
      ADD_FAILURE() << "read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::usage);
      EXPECT_NE(error.problem().where.find(row.file), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find(row.key), std::string::npos) << error.what();
    }
  }
  // transformers treats null like an absent key.
  Folder folder;
  folder.with("tokenizer_config.json",
              R"({"eos_token": null, "add_bos_token": null, "chat_template": null, "model_max_length": null,
                  "added_tokens_decoder": null, "extra_special_tokens": null})");
  EXPECT_EQ(folder.open().vocab_size(), 5);
  EXPECT_EQ(folder.said, "");
}

TEST(UnknownShare, IsThatOfWhatVanishesOrIsUnknown) {
  Folder folder;
  const Tokenizer small = folder.open();
  EXPECT_EQ(unknown_share(small, "abab"), 0.0);
  EXPECT_EQ(unknown_share(small, "abcd"), 0.5);
  EXPECT_EQ(unknown_share(small, "ab   \n  "), 0.0) << "blanks do not count";
  EXPECT_EQ(unknown_share(small, ""), 0.0);
  EXPECT_EQ(unknown_share(small, "xyz"), 1.0);
  for (const char* name : {"llama2", "llama3", "gpt2_prefix", "mistral"}) {
    const Tokenizer whole = Tokenizer::from_folder(golden_path(std::string("tokenizers/") + name));
    EXPECT_LT(unknown_share(whole, "Hello, world! What is 6 times 7?\n\tint main() {}"), 0.05) << name;
  }
}

}  // namespace
}  // namespace octet::text::tokenizer_sources_test
