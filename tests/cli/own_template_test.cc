// If the configuration has no template, the model's own template selects one.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::own_template_test {
namespace {

namespace fs = std::filesystem;

const std::string kChatml =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class OwnTemplate : public testing::Test {
 protected:
  OwnTemplate() : folder_("own_template") {
    fs::copy(task_.model(), folder_ / "model");
    fs::remove(folder_ / "model/chat_template.jinja");
    Json config = parse_json(slurp(folder_ / "model/tokenizer_config.json"), "config");
    config.erase("chat_template");
    spill(folder_ / "model/tokenizer_config.json", config.dump());
  }
  Outcome run(const std::string& name, const std::string& more = "") {
    return trainer(task_.train(folder_ / name, "model_name_or_path=" + (folder_ / "model") +
                                                   " max_steps=3 save_strategy=no " + more),
                   2);
  }
  const Task& task_ = Task::get();
  TemporaryFolder folder_;
};

TEST_F(OwnTemplate, TheOneThatWritesTheSameIsTaken) {
  spill(folder_ / "model/chat_template.jinja", kChatml);
  expect_success(run("named"));
  const Outcome own = run("own", "template=null");
  expect_success(own);
  EXPECT_NE(own.err.find("template: chatml"), std::string::npos) << own.err;
  EXPECT_NE(own.both().find("--template chatml"), std::string::npos) << own.both();
  expect_same_losses(folder_ / "named", folder_ / "own", 1e-12);
}

TEST_F(OwnTemplate, OtherwiseTheNamesAreListedOnce) {
  spill(folder_ / "model/chat_template.jinja", "{% for m in messages %}### {{ m.content }}\n{% endfor %}");
  const Outcome other = run("other", "template=null");
  EXPECT_EQ(other.code, 64) << other.both();
  EXPECT_EQ(errors_in(other), 1) << other.err;
  for (const char* says : {"writes other text", "is the nearest", "template ("}) {
    EXPECT_NE(other.err.find(says), std::string::npos) << other.err;
  }
  fs::remove(folder_ / "model/chat_template.jinja");
  const Outcome none = run("none", "template=null");
  EXPECT_EQ(none.code, 64) << none.both();
  EXPECT_EQ(errors_in(none), 1) << none.err;
  EXPECT_NE(none.err.find("conversations need a chat template"), std::string::npos) << none.err;
}

TEST_F(OwnTemplate, PlainTextDoesWithoutAny) {
  spill(folder_ / "model/chat_template.jinja", "{{ broken");
  spill(folder_ / "text.jsonl", "{\"text\": \"one two three\"}\n{\"text\": \"four five six\"}\n");
  expect_success(run("text", "template=null dataset=" + (folder_ / "text.jsonl")));
  expect_success(run("pt", "template=null stage=pt dataset=" + (folder_ / "text.jsonl")));
}

// transformers and servers read the template from the folder.
TEST_F(OwnTemplate, TheFinalModelCarriesTheOneItWasTrainedWith) {
  expect_success(run("bare"));
  ASSERT_TRUE(fs::exists(folder_ / "bare/chat_template.jinja"));
  // The next run finds it there.
  const Outcome next =
      trainer(task_.train(folder_ / "next", "model_name_or_path=" + (folder_ / "bare") +
                                                " template=null max_steps=1 save_strategy=no"));
  expect_success(next);
  EXPECT_NE(next.err.find("template: chatml"), std::string::npos) << next.err;

  const std::string adapted = "finetuning_type=lora lora_rank=2 learning_rate=1.0e-3 train_from_scratch=true";
  expect_success(run("adapted", adapted));
  EXPECT_EQ(slurp(folder_ / "adapted/chat_template.jinja"), slurp(folder_ / "bare/chat_template.jinja"));
}

TEST_F(OwnTemplate, OfTheModelStaysInTheFinalOneWhereItWritesTheSame) {
  expect_success(run("bare"));
  const std::string own = slurp(folder_ / "bare/chat_template.jinja") + "{# the model's own #}";
  spill(folder_ / "model/chat_template.jinja", own);
  expect_success(run("same"));
  EXPECT_EQ(slurp(folder_ / "same/chat_template.jinja"), own);
  expect_success(run("told", "default_system=Xyzzy"));
  EXPECT_NE(slurp(folder_ / "told/chat_template.jinja").find("'Xyzzy'"), std::string::npos);
}

// The template writes plain conversations like ChatML, but would drop the tools of every request.
TEST_F(OwnTemplate, OfTheModelGivesWayInTheFinalOneWhereItDropsTools) {
  spill(folder_ / "model/chat_template.jinja", kChatml);
  expect_success(run("small", "template=null"));
  EXPECT_NE(slurp(folder_ / "small/chat_template.jinja").find("You have access to the following tools"),
            std::string::npos);
}

TEST_F(OwnTemplate, OfTheModelGivesWayInTheFinalOneWhereItWritesOtherwise) {
  const std::string file = "tokenizer_config.json";
  Json config = parse_json(slurp(folder_ / ("model/" + file)), "config");
  config["chat_template"] = "{% for m in messages %}### {{ m.content }}\n{% endfor %}";
  spill(folder_ / ("model/" + file), config.dump());
  expect_success(run("other"));
  EXPECT_FALSE(parse_json(slurp(folder_ / ("other/" + file)), "config").contains("chat_template"));
  EXPECT_NE(slurp(folder_ / "other/chat_template.jinja").find("<|im_start|>user"), std::string::npos);
}

}  // namespace
}  // namespace octet::test::own_template_test
