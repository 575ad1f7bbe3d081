// Models with experts, through the program: they answer, and every command that trains refuses them by name.
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/safetensors_contents.h"
#include "cli/task.h"
#include "octet/base/json.h"

namespace octet::test::experts_test {
namespace {

namespace fs = std::filesystem;

const std::string kModel = OCTET_SOURCE_DIR "/tests/golden/models/qwen3-moe";

TEST(ExpertModels, AnswerIdsOnAnyRanks) {
  const TemporaryFolder folder("expert_answers");
  const Json reference =
      parse_json(slurp(OCTET_SOURCE_DIR "/tests/golden/generate/qwen3-moe.json"), "qwen3-moe.json");
  std::string rows;
  for (const Json& one : reference["greedy"]) rows += Json{{"prompt_ids", one["prompt_ids"]}}.dump() + "\n";
  spill(folder / "in.jsonl", rows);
  for (const int np : {0, 2, 3}) {
    const std::string out = folder / ("out-" + std::to_string(np) + ".jsonl");
    const Outcome run = trainer("generate " + kModel + " --file " + (folder / "in.jsonl") + " --out " + out +
                                    " --max-new 40 --max-length 128 --batch 2 --dtype fp32 --device cpu",
                                np);
    ASSERT_EQ(run.code, 0) << run.both();
    const auto lines = split(slurp(out), '\n');
    for (std::size_t i = 0; i < reference["greedy"].size(); ++i) {
      EXPECT_EQ(parse_json(lines.at(i), out)["output_ids"], reference["greedy"][i]["output_ids"])
          << "np " << np << ", row " << i;
    }
  }
}

// As Qwen3-30B-A3B-FP8 lies: the blocks' matrices with scales of squares, the router not.
TEST(ExpertModels, AnswerFromFoldersInFp8) {
  const TemporaryFolder folder("expert_fp8");
  const auto [fp8, decoded] = write_fp8_folders(kModel, folder.path(), ".mlp.gate.");
  spill(folder / "in.jsonl", "{\"prompt_ids\": [3, 17, 40, 2]}\n{\"prompt_ids\": [9, 8, 7]}\n");
  for (const std::string dtype : {"fp32", "bf16", "fp8"}) {
    std::vector<std::string> answers;
    for (const std::string& model : {fp8, decoded, kModel}) {
      const std::string out = folder / "out.jsonl";
      const Outcome run = trainer(
          "generate " + model + " --file " + (folder / "in.jsonl") + " --out " + out +
          " --overwrite --max-new 12 --max-length 64 --logprobs 2 --ignore-eos --device cpu --dtype " +
          dtype);
      ASSERT_EQ(run.code, 0) << run.both();
      answers.push_back(slurp(out));
    }
    EXPECT_EQ(answers[0], answers[1]) << dtype;
    EXPECT_NE(answers[0], answers[2]) << "codes are not the weights";
  }
}

TEST(ExpertModels, AreRefusedByWhateverTrains) {
  const TemporaryFolder folder("expert_training");
  const Task& task = Task::get();
  const std::string model = folder / "model";
  fs::copy(task.model(), model);
  Json config = parse_json(slurp(model + "/config.json"), "config.json");
  config["model_type"] = "qwen3_moe";
  config["architectures"] = {"Qwen3MoeForCausalLM"};
  config.update(Json{{"num_experts", 4}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 16}});
  spill(model + "/config.json", config.dump());
  const std::string keys = " model_name_or_path=" + model + " output_dir=" + (folder / "out") + " device=cpu";
  for (const std::string& command :
       {"train " + task.config() + keys, "lint " + task.config() + keys,
        "probe " + model + " device=cpu --batch none --out " + (folder / "probed"),
        "bench " + model + " device=cpu", "plan " + model + " device=cpu"}) {
    const Outcome run = trainer(command);
    EXPECT_EQ(run.code, 64) << command << "\n" << run.both();
    EXPECT_EQ(errors_in(run), 1) << command << "\n" << run.both();
    EXPECT_NE(run.both().find("models with experts are not trained by this version"), std::string::npos)
        << command << "\n"
        << run.both();
    EXPECT_NE(run.both().find("qwen3_moe, 4 experts in a block"), std::string::npos) << command;
  }
  EXPECT_FALSE(fs::exists(folder / "out"));
  const Outcome planned = trainer("plan " + model + " --generate device=cpu");
  EXPECT_EQ(planned.code, 0) << planned.both();
}

}  // namespace
}  // namespace octet::test::experts_test
