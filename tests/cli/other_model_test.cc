// A checkpoint is resumed with the model that wrote it, and not with another model under the same path.
#include <gtest/gtest.h>

#include "cli/task.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/save.h"
#include "octet/comm/thread_ranks.h"

namespace octet::test::other_model_test {
namespace {

namespace fs = std::filesystem;

// A copy of the task's model, with which a run began that is to be resumed.
class OtherModel : public testing::Test {
 protected:
  OtherModel() : folder_("other_model") {
    fs::copy(Task::get().model(), model(), fs::copy_options::recursive);
    expect_success(trainer(start()));
  }
  std::string model() const { return folder_ / "model"; }
  std::string start(const std::string& more = "") const {
    return Task::get().train(folder_ / "run", "model_name_or_path=" + model() + " max_steps=2 " + more);
  }
  void change(const std::string& key, const Json& value) const {
    Json config = parse_json(slurp(Task::get().model() + "/config.json"), "config.json");
    config[key] = value;
    spill(model() + "/config.json", config.dump());
  }
  void expect_refused(const std::string& arguments, const std::string& what) const {
    const Outcome refused = trainer(arguments);
    EXPECT_EQ(refused.code, 64) << refused.both();
    EXPECT_NE(refused.err.find(what), std::string::npos) << refused.err;
    EXPECT_EQ(errors_in(refused), 1) << refused.err;
  }

  TemporaryFolder folder_;
};

TEST_F(OtherModel, IsRefusedAndWhatDiffersIsNamed) {
  const Json heads = parse_json(slurp(model() + "/config.json"), "config.json");
  for (const auto& [key, value, says] :
       {std::tuple<std::string, Json, std::string>{"rope_theta", 12345.0, "-> 12345.0"},
        {"rms_norm_eps", 0.5, "norm_eps"},
        {"num_hidden_layers", 1, "num_hidden_layers 2 -> 1"},
        {"num_hidden_layers", 3, "num_hidden_layers 2 -> 3"},
        {"intermediate_size", 64, "intermediate_size 48 -> 64"},
        {"hidden_act", "gelu_pytorch_tanh", "activation"}}) {
    SCOPED_TRACE(key + " " + value.dump());
    change(key, value);
    expect_refused(start("max_steps=4"), says);
  }
  expect_refused("export " + (folder_ / "run/checkpoint-2") + " " + (folder_ / "exported"), "activation");
  Json many = heads;
  many["rope_theta"] = 12345.0, many["rms_norm_eps"] = 0.25;
  many["num_hidden_layers"] = 1, many["intermediate_size"] = 64, many["head_dim"] = 8;
  many["hidden_act"] = "gelu_pytorch_tanh", many["num_attention_heads"] = 4;
  spill(model() + "/config.json", many.dump());
  expect_refused(start("max_steps=4"), "norm_eps 1e-05 -> 0.25 and 4 more\n");
  spill(model() + "/config.json", heads.dump());
  change("initializer_range", 0.5);  // used only at the start of training
  expect_success(trainer(start("max_steps=4")));
}

TEST_F(OtherModel, AnotherTokenizerIsRefusedAndOtherSettingsOfItAreNot) {
  const std::string path = model() + "/tokenizer.json";
  const std::string before = slurp(path);
  Json tokenizer = parse_json(before, path);
  ASSERT_FALSE(tokenizer["model"]["merges"].empty());
  tokenizer["model"]["merges"].erase(tokenizer["model"]["merges"].size() - 1);
  spill(path, tokenizer.dump());
  expect_refused(start("max_steps=4"), "the tokenizer differs from the tokenizer");
  spill(path, before);
  spill(model() + "/tokenizer_config.json", slurp(model() + "/tokenizer_config.json") + "\n");
  expect_success(trainer(start("max_steps=4")));
}

TEST_F(OtherModel, ATensorThatNoRankAsksForIsNotDropped) {
  const std::string path = folder_ / "run/checkpoint-2";
  {
    const checkpoint::Checkpoint whole(path);
    checkpoint::CheckpointContents more{
        .step = 3, .state = whole.state(), .config_yaml = whole.config_yaml()};
    std::vector<std::vector<std::byte>> values;
    for (const auto& tensor : whole.tensors()) {
      values.emplace_back(static_cast<std::size_t>(tensor.bytes));
      more.slices.push_back({.name = tensor.name,
                             .dtype = tensor.dtype,
                             .shape = tensor.shape,
                             .begin = 0,
                             .count = tensor.bytes / static_cast<std::int64_t>(size_of(tensor.dtype)),
                             .data = values.back().data()});
    }
    whole.read(more.slices);
    more.slices.push_back(more.slices.front());
    more.slices.back().name = "model.layers.7." + more.slices.back().name;
    comm::run_ranks_as_threads(
        {.ranks = 1}, [&](comm::Job& job, Device&) { checkpoint::save(job, folder_ / "run", more); });
  }
  expect_refused(start("max_steps=4"), "the first: 'model.layers.7.");
}

TEST_F(OtherModel, AKeyThatDecidesNumbersIsNamed) {
  const Outcome other = trainer(start("max_steps=4 weight_decay=0.25"));
  expect_success(other);
  EXPECT_NE(other.err.find("the configuration changed: weight_decay"), std::string::npos) << other.err;
  EXPECT_EQ(other.err.find("with other keys"), std::string::npos) << other.err;
}

}  // namespace
}  // namespace octet::test::other_model_test
