// A template in a user's file, used for training, encoding, answers and export alike.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "../src/answers/question_writer.h"
#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::template_file_test {
namespace {

namespace fs = std::filesystem;

/// The model has no chat template.
class TemplateInAFile : public testing::Test {
 protected:
  TemplateInAFile() : folder_("template_file") {
    fs::copy(Task::get().model(), folder_ / "model");
    fs::remove(folder_ / "model/chat_template.jinja");
    Json config = parse_json(slurp(folder_ / "model/tokenizer_config.json"), "config");
    config.erase("chat_template");
    spill(folder_ / "model/tokenizer_config.json", config.dump());
  }
  Outcome run(const std::string& name, const std::string& more) {
    return trainer(
        Task::get().train(folder_ / name, "model_name_or_path=" + (folder_ / "model") + " " + more), 2);
  }
  TemporaryFolder folder_;
};

// No row of the table writes this text, so the file itself is rendered and exported with the model.
const std::string kOwnFile =
    "{% for m in messages %}{% if 'Xyzzy' in m.content %}{{ raise_exception('not this word') }}{% endif %}"
    "### {{ m.role }}: {{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}### assistant: {% endif %}";

TEST_F(TemplateInAFile, RendersAndGoesWithTheModel) {
  const std::string file = folder_ / "own.jinja", more = "save_steps=2 template=" + file;
  spill(file, kOwnFile);
  const Outcome ran = run("file", more + " max_steps=3");
  expect_success(ran);
  EXPECT_NE(ran.err.find("template: " + file +
                         ", a chat template, rendered for each conversation; answers end in <|im_end|>"),
            std::string::npos)
      << ran.err;
  EXPECT_EQ(slurp(folder_ / "file/chat_template.jinja"), kOwnFile);
  // The final model, its checkpoint and the file give equal prompts.
  std::vector<std::vector<std::int32_t>> asked;
  for (const char* model : {"file", "file/checkpoint-2"}) {
    answers::GenerateOptions options;
    options.model = folder_ / model;
    const answers::QuestionWriter writer(options, answers::find_model(options));
    asked.push_back(writer.prompt(answers::ask("sort pear fig", "")));
    EXPECT_EQ(writer.tokenizer().decode(asked.back()), "### user: sort pear fig<|im_end|>\n### assistant: ");
  }
  EXPECT_EQ(asked[0], asked[1]);
  // The model's eos is not the token that ends its answers.
  const Json ends =
      parse_json(slurp(folder_ / "file/generation_config.json"), "generation_config.json")["eos_token_id"];
  const std::int32_t end = text::Tokenizer::from_folder(folder_ / "file").token_to_id("<|im_end|>");
  EXPECT_TRUE(ends.is_array() && std::ranges::find(ends, Json(end)) != ends.end()) << ends;
  ASSERT_EQ(trainer("export " + (folder_ / "file/checkpoint-2") + " " + (folder_ / "exported")).code, 0);
  EXPECT_EQ(slurp(folder_ / "exported/chat_template.jinja"), kOwnFile);
  // A resumed run reports that the file has changed. Other commands do not use the changed file for the run.
  spill(file, "{# another #}" + kOwnFile);
  const Outcome same = run("file", more + " max_steps=4");
  expect_success(same);
  EXPECT_NE(same.err.find("the template file changed after the checkpoint was written"), std::string::npos)
      << same.err;
  spill(file, kOwnFile);
  const std::string checkpoint = folder_ / "file/checkpoint-4";
  for (const std::string& command : {"generate " + checkpoint + " --device cpu --max-new 1 why",
                                     "export " + checkpoint + " " + (folder_ / "other")}) {
    const Outcome other = trainer(command);
    EXPECT_EQ(other.code, 64) << other.both();
    EXPECT_NE(other.err.find("the file of the template changed"), std::string::npos) << other.err;
  }
  EXPECT_EQ(trainer("generate " + checkpoint + " --device cpu --max-new 1 --template " + file + " why").code,
            0);
}

TEST_F(TemplateInAFile, ThatCannotWriteARowNamesTheRow) {
  const std::string file = folder_ / "own.jinja", rows = folder_ / "rows.jsonl";
  spill(file, kOwnFile);
  spill(rows, R"({"user": "one", "assistant": "two"})"
              "\n"
              R"({"user": "Xyzzy", "assistant": "two"})"
              "\n");
  const Outcome ran = run("row", "max_steps=3 dataset=" + rows + " template=" + file);
  EXPECT_EQ(ran.code, 64) << ran.both();
  EXPECT_EQ(errors_in(ran), 1) << ran.err;
  for (const std::string& says : {"a row cannot be written with the template " + file,
                                  std::string("not this word"), rows + ":2", std::string("remove the row")})
    EXPECT_NE(ran.err.find(says), std::string::npos) << ran.err;
}

// SFT-Play's own Jinja file writes the prompt of one question from a row's columns.
TEST_F(TemplateInAFile, OfOneQuestionIsFilledIn) {
  const TemporaryFolder& folder = folder_;
  spill(folder / "prompt.jinja",
        "{% if system %}<|system|>\n{{ system }}\n{% endif %}<|user|>\n{{ user }}\n<|assistant|>\n\n");
  std::string rows;
  for (int i = 0; i < 40; ++i) {
    rows +=
        Json{{"system", "sort"}, {"user", std::to_string(i) + " 1"}, {"assistant", "1 " + std::to_string(i)}}
            .dump() +
        "\n";
  }
  spill(folder / "rows.jsonl", rows);
  const std::string file = folder / "prompt.jinja";
  const Outcome ran =
      run("out", "max_steps=1 dataset=" + (folder / "rows.jsonl") + " data.template_path=" + file);
  EXPECT_EQ(ran.code, 0) << ran.both();
  EXPECT_NE(ran.err.find("template: " + file + ", the prompt of one question, filled in from 'user'"),
            std::string::npos)
      << ran.err;
  // The final model and its checkpoint write the prompt of the file.
  spill(
      folder / "line.jsonl",
      R"({"messages": [{"role": "user", "content": "7 1"}, {"role": "assistant", "content": "1 7"}], "system": "sort", "generate": true})"
      "\n");
  const Outcome encoded = trainer("encode " + (folder_ / "model") + " --template " + file + " --input " +
                                  (folder / "line.jsonl"));
  ASSERT_EQ(encoded.code, 0) << encoded.both();
  const Json line = parse_json(encoded.out, "the ids");
  spill(folder / "ids.jsonl",
        Json{{"ids", line["prompt_ids"]}}.dump() + "\n" + Json{{"ids", line["response_ids"]}}.dump() + "\n");
  const Outcome decoded = trainer("encode " + (folder_ / "model") + " --input " + (folder / "ids.jsonl"));
  EXPECT_NE(decoded.out.find(R"("<|system|>\nsort\n<|user|>\n7 1\n<|assistant|>\n")"), std::string::npos)
      << decoded.out;
  EXPECT_NE(decoded.out.find(R"("decoded":"1 7<|)"), std::string::npos) << decoded.out;
  answers::GenerateOptions options;
  options.model = folder / "out";
  const answers::QuestionWriter writer(options, answers::find_model(options));
  EXPECT_EQ(Json(writer.prompt(answers::ask("7 1", "sort"))), line["prompt_ids"]);
  options.model = folder / "out/checkpoint-1";
  const answers::QuestionWriter of_checkpoint(options, answers::find_model(options));
  EXPECT_EQ(Json(of_checkpoint.prompt(answers::ask("7 1", "sort"))), line["prompt_ids"]);
}

}  // namespace
}  // namespace octet::test::template_file_test
