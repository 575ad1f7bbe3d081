// Inconsistent tokenizer files, difficult texts, and the guarantees of the class.
#include "octet/text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "folder.h"
#include "golden.h"
#include "octet/base/error.h"

namespace octet::text::tokenizer_test {
namespace {

/// A small tokenizer file with some parts replaced.
struct File {
  std::string added = "[]";
  std::string normalizer = "null";
  std::string pre_tokenizer = "null";
  std::string post_processor = "null";
  std::string decoder = R"({"type": "Fuse"})";
  std::string vocab = R"({"a": 0, "b": 1, "ab": 2, " ": 3, "abb": 4})";
  std::string merges = R"(["a b", ["ab", "b"]])";
  std::string model = R"("type": "BPE")";

  std::string text() const {
    return R"({"version": "1.0", "added_tokens": )" + added + R"(, "normalizer": )" + normalizer +
           R"(, "pre_tokenizer": )" + pre_tokenizer + R"(, "post_processor": )" + post_processor +
           R"(, "decoder": )" + decoder + R"(, "model": {)" + model + R"(, "vocab": )" + vocab +
           R"(, "merges": )" + merges + "}}";
  }
  Tokenizer load() const {
    const TestFolder folder;
    return Tokenizer::from_folder(folder.write("tokenizer.json", text()));
  }
  /// Returns the error message of loading.
  std::string refusal() const {
    try {
      load();
    } catch (const Error& error) {
      return error.what();
    }
    return "it was accepted";
  }
};

TEST(Tokenizer, ASmallFileIsRead) {
  const Tokenizer tokenizer = File{}.load();
  EXPECT_EQ(tokenizer.encode("abba abb").ids, (std::vector<TokenId>{4, 0, 3, 4}));
  EXPECT_EQ(tokenizer.vocab_size(), 5);
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{4, 3, 2}), "abb ab");
  EXPECT_EQ(tokenizer.eos_id(), -1);
}

TEST(Tokenizer, AMissingFileIsNamed) {
  try {
    Tokenizer::from_folder("/no/such/folder");
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("/no/such/folder"), std::string::npos);
  }
}

TEST(Tokenizer, UnknownComponentsAreNamed) {
  const std::string unknown = R"({"type": "Mystery"})";
  for (File file :
       {File{.normalizer = unknown}, File{.pre_tokenizer = unknown}, File{.post_processor = unknown},
        File{.decoder = unknown}, File{.model = R"("type": "Mystery")"},
        File{.normalizer = R"({"type": "Sequence", "normalizers": [)" + unknown + "]}"}}) {
    EXPECT_NE(file.refusal().find("'Mystery'"), std::string::npos) << file.refusal();
  }
}

TEST(Tokenizer, IdsMustBeWholeNumbersInRangeAndUnique) {
  for (const char* vocab : {R"({"a": -1, "b": 1})", R"({"a": 1.5})", R"({"a": "0"})", R"({"a": 99999999999})",
                            R"({"a": 18446744073709551615})", R"({"a": 0, "b": 0})", R"({"a": 0, "a": 1})",
                            "[]", "{}", R"({"a": 60000000})", R"({"a": {"b": 1}})", R"({"a": null})"}) {
    EXPECT_NE((File{.vocab = vocab, .merges = "[]"}.refusal()), "it was accepted") << vocab;
  }
}

TEST(Tokenizer, MergesMustJoinKnownPieces) {
  for (const char* merges :
       {R"(["a c"])", R"(["b a"])", R"(["a"])", R"(["a b b"])", R"([["a"]])", R"([["a", "b", "b"]])",
        R"([1])", R"([["a", 1]])", R"([[["a"], "b"]])", R"({"a": 1})", "null"}) {
    EXPECT_NE((File{.merges = merges}.refusal()), "it was accepted") << merges;
  }
}

TEST(Tokenizer, AddedTokensMustNotContradictTheVocabulary) {
  for (const char* added :
       {R"([{"id": 1, "content": "a"}])", R"([{"id": 1, "content": "x"}])", R"([{"id": -1, "content": "x"}])",
        R"([{"id": 4000000000, "content": "x"}])", R"([{"id": 50000000, "content": "x"}])",
        R"([{"content": "x"}])", R"([{"id": 9}])", R"([{"id": 9, "content": 1}])",
        R"([{"id": 9, "content": "x"}, {"id": 9, "content": "y"}])",
        R"([{"id": 9, "content": "x"}, {"id": 10, "content": "x"}])", R"([3])", R"({"id": 9})",
        R"([{"id": 9, "content": "x", "special": "yes"}])"}) {
    EXPECT_NE((File{.added = added}.refusal()), "it was accepted") << added;
  }
}

TEST(Tokenizer, AnEmptyAddedTokenIsLeftOut) {
  const Tokenizer tokenizer = File{.added = R"([{"id": 9, "content": "", "special": true}])"}.load();
  EXPECT_EQ(tokenizer.encode("ab").ids, std::vector<TokenId>{2});
  EXPECT_EQ(tokenizer.vocab_size(), 5);
}

TEST(Tokenizer, BrokenAndDeepJsonIsRefused) {
  const TestFolder folder;
  const auto refused = [&](const std::string& text) {
    EXPECT_THROW(Tokenizer::from_folder(folder.write("tokenizer.json", text)), Error) << text.substr(0, 80);
  };
  const std::string whole = File{}.text();
  for (std::size_t length = 0; length < whole.size(); length += 7) refused(whole.substr(0, length));
  refused("[]");
  refused("null");
  refused(std::string(100000, '['));
  std::string deep = "null";
  for (int i = 0; i < 5000; ++i) deep = R"({"type": "Sequence", "normalizers": [)" + deep + "]}";
  refused(File{.normalizer = deep}.text());
  refused(R"({"model": {"vocab": {"\ud800": 0}, "merges": []}})");
}

TEST(Tokenizer, ThePostProcessorMustAddTokensThatExist) {
  const char* post = R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {"x": {"id": "x", "ids": [77], "tokens": ["x"]}}})";
  EXPECT_NE((File{.post_processor = post}.refusal().find("77")), std::string::npos);
}

TEST(Tokenizer, PostProcessorsActOneAfterTheOther) {
  const auto around = [](const char* before, const char* after) {
    const auto special = [](const char* id) {
      return std::string(R"({"SpecialToken": {"id": ")") + id + R"(", "type_id": 0}})";
    };
    return R"({"type": "TemplateProcessing", "single": [)" + special(before) +
           R"(, {"Sequence": {"id": "A", "type_id": 0}}, )" + special(after) + R"(], "special_tokens": {)" +
           R"("p": {"id": "p", "ids": [0], "tokens": ["a"]}, "q": {"id": "q", "ids": [1], "tokens": ["b"]},)" +
           R"("r": {"id": "r", "ids": [2], "tokens": ["ab"]}, "s": {"id": "s", "ids": [4], "tokens": ["abb"]}}})";
  };
  const Tokenizer tokenizer = File{.post_processor = R"({"type": "Sequence", "processors": [)" +
                                                     around("p", "q") + ", " + around("r", "s") + "]}"}
                                  .load();
  EXPECT_EQ(tokenizer.encode(" ", {.add_special = true}).ids, (std::vector<TokenId>{2, 0, 3, 1, 4}));
}

TEST(Tokenizer, TextThatIsNotUtf8IsRefused) {
  const Tokenizer tokenizer = File{}.load();
  for (const char* text : {"\xFF", "a\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80"}) {
    EXPECT_THROW(tokenizer.encode(text), Error);
  }
}

TEST(Tokenizer, IdsThatDoNotExistAreSkipped) {
  const Tokenizer tokenizer = File{}.load();
  EXPECT_EQ(tokenizer.decode(std::vector<TokenId>{-5, 2, 1000000, INT32_MAX, INT32_MIN, 0}), "aba");
  EXPECT_EQ(tokenizer.id_to_token(-1), "");
  EXPECT_EQ(tokenizer.id_to_token(5), "");
}

TEST(Tokenizer, CatastrophicExpressionsEndInTime) {
  const std::string text(20000, 'a');
  const auto begin = std::chrono::steady_clock::now();
  for (const char* pattern : {"(a+)+b", "(a|a)*b", "(a*)*c", "a+b|a+c|a+d", "(?:a?){30}a{30}b", "(?=(a+)+b)x",
                              "(?!(a|aa)+$)b", "(?>(a+)+)b"}) {
    const std::string split = R"({"type": "Split", "pattern": {"Regex": ")" + std::string(pattern) +
                              R"("}, "behavior": "Isolated", "invert": false})";
    const Tokenizer tokenizer = File{.pre_tokenizer = split}.load();
    try {
      EXPECT_EQ(tokenizer.encode(text).ids.size(), text.size()) << pattern;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("takes too long"), std::string::npos) << error.what();
    }
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(Tokenizer, ManyThreadsMayEncodeWithOneObject) {
  const Tokenizer tokenizer = Tokenizer::from_folder(golden_path("tokenizers/qwen2"));
  std::vector<std::string> texts;
  for (int i = 0; i < 200; ++i)
    texts.push_back("Text number " + std::to_string(i * 7919) + " caf\xC3\xA9 <|im_end|> e\xCC\x81");
  std::vector<std::vector<TokenId>> want;
  for (const auto& text : texts) want.push_back(tokenizer.encode(text).ids);
  std::vector<std::thread> threads;
  std::vector<int> wrong(4, 0);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      for (std::size_t i = 0; i < texts.size(); ++i) wrong[t] += tokenizer.encode(texts[i]).ids != want[i];
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4, 0));
}

TEST(Tokenizer, AddedSpecialTokensAreSavedAndReadBack) {
  for (const char* name : {"llama3", "gpt2", "qwen2"}) {
    Tokenizer tokenizer = Tokenizer::from_folder(golden_path(std::string("tokenizers/") + name));
    EXPECT_FALSE(tokenizer.changed());
    const std::int64_t before = tokenizer.vocab_size();
    EXPECT_EQ(tokenizer.add_special_token("<|fresh|>"), before);
    tokenizer.set_eos_token("<|fresh|>");
    tokenizer.set_pad_token("<|fresh|>");
    const TestFolder folder;
    tokenizer.save(folder.path());
    const Tokenizer back = Tokenizer::from_folder(folder.path());
    EXPECT_EQ(back.vocab_size(), before + 1);
    EXPECT_EQ(back.eos_id(), before);
    EXPECT_EQ(back.pad_id(), before);
    EXPECT_EQ(back.bos_id(), tokenizer.bos_id());
    EXPECT_TRUE(back.is_special(static_cast<TokenId>(before)));
    const std::string text = "He said <|fresh|>\n\n  don't 12345 <|endoftext|><|eot_id|>";
    EXPECT_EQ(back.encode(text).ids, tokenizer.encode(text).ids) << name;
  }
}

TEST(Tokenizer, UnchangedFilesAreCopiedByteForByte) {
  const std::string from = golden_path("tokenizers/llama3");
  const Tokenizer tokenizer = Tokenizer::from_folder(from);
  const TestFolder folder;
  tokenizer.save(folder.path());
  EXPECT_EQ(tokenizer.files().size(), 3u);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"}) {
    EXPECT_EQ(read_file(folder.path() + "/" + name), read_file(from + "/" + name));
  }
}

TEST(Tokenizer, NormalizersThatMultiplyATextAreRefused) {
  File file;
  std::string steps;
  for (int i = 0; i < 12; ++i) {
    steps += (i ? ", " : "") +
             std::string(R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"})");
  }
  file.normalizer = R"({"type": "Sequence", "normalizers": [)" + steps + "]}";
  const Tokenizer many = file.load();
  EXPECT_THROW(many.encode(std::string(1000, 'a')), Error);
  file.normalizer =
      R"({"type": "Replace", "pattern": {"String": "a"}, "content": ")" + std::string(100000, 'b') + R"("})";
  const Tokenizer large = file.load();
  EXPECT_THROW(large.encode(std::string(1000, 'a')), Error);
  file.normalizer = R"({"type": "Replace", "pattern": {"String": "a"}, "content": "aaaaaaaaaa"})";
  EXPECT_EQ(file.load().encode("aa").ids.size(), 20u) << "ten times is little";
}

}  // namespace
}  // namespace octet::text::tokenizer_test
