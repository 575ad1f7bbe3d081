// Keys of the files of a model folder: absent, null and a wrong type are three things.
#include "octet/base/model_file.h"

#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "support/program.h"

namespace octet::model_file_test {
namespace {

using test::spill;
using test::TemporaryFolder;

/// Values that transformers accepts for keys of a file, and values that it does not.
struct Row {
  const char* file;
  std::vector<const char*> keys, accepted, refused;
};

const std::vector<Row>& rows() {
  static const std::vector<Row> all{
      {"config.json",
       {"eos_token_id"},
       {"2", "0", "[2]", "[2, 3]", "[]"},
       {"\"2\"", "2.5", "2.0", "true", "-1", "[[2]]", "[2, \"3\"]", "[2, null]", "[-1]", "{\"id\": 2}",
        "4294967297", "18446744073709551615", "1e300"}},
      {"config.json",
       {"bos_token_id", "pad_token_id"},
       {"2", "-1"},
       {"\"2\"", "2.5", "[2]", "true", "{}", "18446744073709551615"}},
      {"config.json",
       {"dtype", "torch_dtype"},
       {"\"bfloat16\"", "{\"\": \"float32\"}"},
       {"16", "true", "[\"bfloat16\"]", "{\"\": 16}"}},
      {"config.json",
       {"architectures"},
       {"[\"LlamaForCausalLM\"]", "[]"},
       {"\"LlamaForCausalLM\"", "3", "[3]", "{}", "[null]"}},
      {"generation_config.json", {"eos_token_id"}, {"2", "[2, 3]"}, {"\"2\"", "[[2]]", "-1", "2.5"}},
      {"generation_config.json", {"bos_token_id", "pad_token_id"}, {"2", "-1"}, {"\"2\"", "2.5", "true"}},
      {"generation_config.json", {"do_sample"}, {"true", "false"}, {"1", "\"true\"", "[true]"}},
      {"generation_config.json",
       {"temperature", "top_p", "min_p", "repetition_penalty"},
       {"1", "0.5"},
       {"\"0.5\"", "true", "[0.5]", "{}"}},
      {"generation_config.json",
       {"top_k", "max_new_tokens"},
       {"20", "20.0"},
       {"\"20\"", "20.5", "true", "[20]"}},
      {"tokenizer_config.json", {"add_bos_token"}, {"true", "false"}, {"1", "\"true\"", "[]"}},
      {"tokenizer_config.json",
       {"model_max_length"},
       {"2048", "1e30", "1000000000000000019884624838656"},
       {"\"2048\"", "true", "[2048]"}},
      {"tokenizer_config.json",
       {"chat_template"},
       {"\"x\"", "[{\"name\": \"default\", \"template\": \"x\"}]", "{\"default\": \"x\"}", "[]"},
       {"3", "true", "[\"x\"]", "[{\"name\": \"default\"}]", "[{\"name\": 1, \"template\": \"x\"}]",
        "{\"default\": 1}"}},
      {"tokenizer_config.json",
       {"added_tokens_decoder"},
       {"{}", "{\"5\": {\"content\": \"x\"}}"},
       {"[]", "\"x\"", "5"}},
      {"tokenizer_config.json",
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"},
       {"\"</s>\"", "{\"content\": \"</s>\", \"lstrip\": false}"},
       {"2", "true", "[\"</s>\"]", "{}", "{\"content\": 2}"}},
      {"special_tokens_map.json",
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"},
       {"\"</s>\"", "{\"content\": \"</s>\"}"},
       {"2", "[\"</s>\"]", "{\"text\": \"</s>\"}"}},
      {"special_tokens_map.json",
       {"additional_special_tokens", "extra_special_tokens"},
       {"[\"<x>\", {\"content\": \"<y>\"}]", "{\"image_token\": \"<x>\"}", "[]"},
       {"\"<x>\"", "3", "[3]", "{\"image_token\": 3}"}}};
  return all;
}

/// What read_model_file() says of a file with this text; "" if it reads it.
std::string refusal(const TemporaryFolder& folder, const std::string& file, const std::string& text) {
  spill(folder / file, text);
  try {
    (void)read_model_file(folder.path(), file);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
}

TEST(ModelFile, AWrongTypeIsRefusedByFileKeyAndValue) {
  const TemporaryFolder folder("model_file");
  for (const Row& row : rows()) {
    for (const std::string key : row.keys) {
      const auto said = [&](const std::string& value) {
        return refusal(folder, row.file, "{\"" + key + "\": " + value + "}");
      };
      EXPECT_EQ(said("null"), "") << key << " is null";
      for (const char* value : row.accepted) EXPECT_EQ(said(value), "") << key << " " << value;
      for (const char* value : row.refused) {
        SCOPED_TRACE(row.file + (": " + key) + " " + value);
        const std::string text = said(value);
        for (const std::string& part :
             {"value of '" + key + "' cannot be used\n  expected: ", std::string("\n  found:    "),
              "\n  where:    " + (folder / row.file) + "\n", std::string("\n  to do:    ")})
          EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
      }
    }
    EXPECT_EQ(refusal(folder, row.file, "{}"), "") << "absent";
    EXPECT_NE(refusal(folder, row.file, "[]").find("an object of keys and values"), std::string::npos);
  }
}

TEST(ModelFile, AnAbsentFileIsEmpty) {
  const TemporaryFolder folder("model_file");
  EXPECT_EQ(read_model_file(folder.path(), "generation_config.json"), Json::object());
}

TEST(ModelFile, IdsAndTextsOfTokens) {
  const Json file = parse_json(
      R"({"one": 2, "list": [2, 3], "none": [], "null": null, "text": "</s>", "object": {"content": "<x>"}})",
      "a file");
  using Ids = std::vector<std::int32_t>;
  EXPECT_EQ(token_ids(file, "one"), Ids{2});
  EXPECT_EQ(token_ids(file, "list"), (Ids{2, 3}));
  for (const char* key : {"none", "null", "absent"}) EXPECT_EQ(token_ids(file, key), Ids{}) << key;
  EXPECT_EQ(token_text(file, "text"), "</s>");
  EXPECT_EQ(token_text(file, "object"), "<x>");
  for (const char* key : {"null", "absent"}) EXPECT_EQ(token_text(file, key), "") << key;
}

}  // namespace
}  // namespace octet::model_file_test
