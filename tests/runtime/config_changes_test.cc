// Each changed key of config.json is reported before a run resumes.
#include <gtest/gtest.h>

#include <string>

#include "octet/base/json.h"
#include "octet/runtime/same_model.h"
#include "support/program.h"

namespace octet::runtime::config_changes_test {
namespace {

Json state_of(const std::string& config, const std::string& generation = "") {
  const test::TemporaryFolder folder("config");
  test::spill(folder / "config.json", config);
  if (!generation.empty()) test::spill(folder / "generation_config.json", generation);
  // As a checkpoint keeps it.
  return Json::parse(config_state(folder.path()).dump());
}

TEST(ConfigChanges, EveryKeyThatDiffersIsNamedWithBothValues) {
  struct Row {
    const char *before, *now, *says;
  };
  for (const Row& row : {
           Row{R"({"eos_token_id": 2})", R"({"eos_token_id": 2})", ""},
           {R"({"eos_token_id": 2})", R"({"eos_token_id": 3})", "config.json: eos_token_id 2 -> 3"},
           {R"({"eos_token_id": 2})", R"({"eos_token_id": [2, 3]})", "config.json: eos_token_id 2 -> [2,3]"},
           {R"({"max_position_embeddings": 64})", R"({})", "config.json: max_position_embeddings 64 -> null"},
           {R"({})", R"({"attention_dropout": 0.5})", "config.json: attention_dropout null -> 0.5"},
           {R"({"rope_theta": 1e4})", R"({"rope_theta": 10000})", ""},
           {R"({"text_config": {"eos_token_id": 1, "a": 2}})",
            R"({"text_config": {"eos_token_id": 4, "a": 2}})",
            "config.json: text_config.eos_token_id 1 -> 4"},
           {R"({"transformers_version": "4", "dtype": "float32"})", R"({"torch_dtype": "bfloat16"})", ""},
       }) {
    EXPECT_EQ(config_changes(state_of(row.before), state_of(row.now)), row.says) << row.before << row.now;
  }
  EXPECT_EQ(
      config_changes(state_of("{}", R"({"eos_token_id": 2})"), state_of("{}", R"({"eos_token_id": 5})")),
      "generation_config.json: eos_token_id 2 -> 5");
  EXPECT_EQ(config_changes(Json(), state_of("{}")), "") << "of a checkpoint that kept none";
}

TEST(ConfigChanges, ALongValueTakesLittleRoomAndIsComparedAllTheSame) {
  Json labels = Json::object();
  for (int i = 0; i < 5000; ++i) labels[std::to_string(i)] = "LABEL_" + std::to_string(i);
  const Json before = state_of(Json{{"id2label", labels}}.dump());
  EXPECT_LT(before.dump().size(), 200u);
  labels["4999"] = "other";
  EXPECT_NE(config_changes(before, state_of(Json{{"id2label", labels}}.dump())).find("id2label"),
            std::string::npos);
}

}  // namespace
}  // namespace octet::runtime::config_changes_test
