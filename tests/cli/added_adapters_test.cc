// Adapters merged into their base: before further training, for answers, and for a whole model.
#include <filesystem>

#include "cli/adapter_task.h"

namespace octet::test::added_adapters_test {
namespace {

namespace fs = std::filesystem;

class AddedAdapters : public testing::Test {
 protected:
  AddedAdapters() : folder_("added_adapters") {}

  /// Trains two adapters. The second is trained on the base with the first.
  void train_two() {
    expect_success(
        trainer(lora(folder_ / "a", "learning_rate=0.01 lora_rank=3 lora_alpha=5 save_strategy=no")));
    const Outcome second = trainer(lora(folder_ / "b",
                                        "learning_rate=0.01 use_rslora=true create_new_adapter=true "
                                        "lora_target=q_proj,up_proj adapter_name_or_path=" +
                                            (folder_ / "a")));
    expect_success(second);
    EXPECT_NE(second.both().find("trainer generate " + adapter_base() + " --adapter " + (folder_ / "a") +
                                 "," + (folder_ / "b")),
              std::string::npos)
        << "the folder alone names the base without the first: " << second.both();
    expect_success(trainer("export " + (folder_ / "a") + " " + (folder_ / "base_a") + " --merge"));
  }

  TemporaryFolder folder_;
};

/// Runs before a release only.
class WholeAddedAdapters : public AddedAdapters {};

TEST_F(WholeAddedAdapters, AllButTheLastStandInTheBaseAndTheLastIsTrained) {
  train_two();
  const std::string lora_keys = "finetuning_type=lora adapter_name_or_path=";
  const auto expected = probed(folder_, folder_ / "base_a", lora_keys + (folder_ / "b"));
  expect_success(trainer("export " + (folder_ / "base_a") + " " + (folder_ / "whole") +
                         " --merge --adapter " + (folder_ / "b")));
  EXPECT_LT(distance(probed(folder_, folder_ / "whole"), expected), 1e-5) << "once, beside the base";
  const auto without = probed(folder_, adapter_base(), lora_keys + (folder_ / "b"));
  EXPECT_GT(distance(without, expected), 1e-3) << "the first adapter counts";
  for (const auto& [np, stage] : {std::pair{1, 0}, {2, 0}, {2, 3}}) {
    const auto found = probed(
        folder_, adapter_base(),
        lora_keys + (folder_ / "a") + "," + (folder_ / "b") + " zero_stage=" + std::to_string(stage), np);
    EXPECT_LT(distance(found, expected), 1e-6) << np << " ranks, stage " << stage;
    const weights::SafetensorsFile file(folder_ / "probed.safetensors");
    for (const auto& tensor : file.tensors()) {
      if (!tensor.name.starts_with("grad.")) continue;
      const bool of_b =
          tensor.name.find("q_proj") != std::string::npos || tensor.name.find("up_proj") != std::string::npos;
      EXPECT_TRUE(of_b) << "only the last is trained: " << tensor.name;
    }
  }
  EXPECT_LT(distance(probed(folder_, folder_ / "b", lora_keys + (folder_ / "a")),
                     probed(folder_, adapter_base(), lora_keys + (folder_ / "b") + "," + (folder_ / "a"))),
            1e-6)
      << "an adapter that is named as the model comes first";
}

TEST_F(AddedAdapters, CreateNewAdapterBeginsWithTheBitsOfTheMergedModel) {
  train_two();
  const auto merged = probed(folder_, folder_ / "base_a");
  const std::string keys =
      "finetuning_type=lora lora_rank=2 lora_target=o_proj create_new_adapter=true "
      "adapter_name_or_path=" +
      (folder_ / "a");
  EXPECT_EQ(probed(folder_, adapter_base(), keys), merged);
  const weights::SafetensorsFile file(folder_ / "probed.safetensors");
  const std::string name = "grad.base_model.model.model.layers.0.self_attn.o_proj.lora_A.weight";
  EXPECT_EQ(file.at(name).shape, (std::vector<std::int64_t>{2, 32})) << "as its own keys say";
  EXPECT_EQ(probed(folder_, folder_ / "a"), merged) << "an adapter as the model of a probe of all weights";
}

TEST_F(AddedAdapters, ARunGoesOnOverTheSameOnesAlone) {
  train_two();
  fs::remove(folder_ / "b/adapter_model.safetensors");
  const std::string more =
      "learning_rate=0.01 use_rslora=true lora_target=q_proj,up_proj create_new_adapter=true ";
  const Outcome alone =
      trainer(lora(folder_ / "b", "learning_rate=0.01 use_rslora=true lora_target=q_proj,up_proj"));
  EXPECT_EQ(alone.code, 64);
  EXPECT_NE(alone.err.find("the adapters that are added to the base differ"), std::string::npos) << alone.err;
  fs::copy(folder_ / "a", folder_ / "moved", fs::copy_options::recursive);
  expect_success(trainer(lora(folder_ / "b", more + "adapter_name_or_path=" + (folder_ / "moved"))));
  const std::string weights = folder_ / "moved/adapter_model.safetensors";
  std::string bytes = slurp(weights);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  spill(weights, bytes);
  fs::remove(folder_ / "b/adapter_model.safetensors");
  const Outcome changed = trainer(lora(folder_ / "b", more + "adapter_name_or_path=" + (folder_ / "moved")));
  EXPECT_EQ(changed.code, 64);
  EXPECT_NE(changed.err.find("the adapters that are added to the base differ"), std::string::npos)
      << changed.err;
}

TEST_F(AddedAdapters, AnswersAreThoseOfTheMergedModel) {
  train_two();
  const std::string both = (folder_ / "a") + "," + (folder_ / "b");
  expect_success(
      trainer("export " + adapter_base() + " " + (folder_ / "whole") + " --merge --adapter " + both));
  const auto answer = [&](const std::string& model) {
    const Outcome run =
        trainer("generate " + model + " --template chatml --max-new 24 --temperature 1 hello");
    EXPECT_EQ(run.code, 0) << run.both();
    return run.out;
  };
  const std::string whole = answer(folder_ / "whole");
  EXPECT_EQ(answer(adapter_base() + " --adapter " + both), whole);
  EXPECT_EQ(answer((folder_ / "a") + " --adapter " + (folder_ / "b")), whole);
  EXPECT_NE(answer(adapter_base()), whole);
  EXPECT_EQ(answer(folder_ / "a"), answer(folder_ / "base_a"));
  const Outcome two =
      on_ranks(2, "generate " + (folder_ / "a") + " --template chatml --max-new 24 --temperature 1 hello");
  EXPECT_EQ(two.out, answer(folder_ / "a")) << two.err;
}

// The magnitude is divided by the norms of the base with the earlier adapters.
TEST_F(WholeAddedAdapters, OneWithMagnitudesCountsThoseBeforeIt) {
  train_two();
  expect_success(trainer(lora(folder_ / "c",
                              "learning_rate=0.01 use_dora=true create_new_adapter=true "
                              "save_strategy=no adapter_name_or_path=" +
                                  (folder_ / "a"))));
  expect_success(trainer("export " + (folder_ / "base_a") + " " + (folder_ / "in_turn") +
                         " --merge --adapter " + (folder_ / "c")));
  expect_success(trainer("export " + adapter_base() + " " + (folder_ / "at_once") + " --merge --adapter " +
                         (folder_ / "a") + "," + (folder_ / "c")));
  const auto in_turn = probed(folder_, folder_ / "in_turn");
  EXPECT_LT(distance(probed(folder_, folder_ / "at_once"), in_turn), 1e-5);
  EXPECT_GT(distance(probed(folder_, folder_ / "base_a"), in_turn), 1e-3) << "it changes the model";
  // An adapter with a learning rate of almost 0 changes nothing.
  expect_success(trainer(lora(folder_ / "d",
                              "learning_rate=1.0e-12 use_dora=true create_new_adapter=true "
                              "save_strategy=no adapter_name_or_path=" +
                                  (folder_ / "a"))));
  expect_success(trainer("export " + adapter_base() + " " + (folder_ / "unlearned") + " --merge --adapter " +
                         (folder_ / "a") + "," + (folder_ / "d")));
  EXPECT_LT(distance(probed(folder_, folder_ / "unlearned"), probed(folder_, folder_ / "base_a")), 1e-5);
}

// A configuration file of `llamafactory-cli export`.
TEST_F(AddedAdapters, AFileAsksForAMerge) {
  train_two();
  const std::string file = folder_ / "merge.yaml";
  const std::string text =
      "model_name_or_path: " + adapter_base() + "\nadapter_name_or_path: " + (folder_ / "a") + "," +
      (folder_ / "b") +
      "\ntemplate: chatml\ntrust_remote_code: true\nexport_dir: " + (folder_ / "from_file") +
      "\nexport_size: 5\nexport_device: cpu\nexport_legacy_format: false\n";
  spill(file, text);
  expect_success(trainer("export " + file));
  expect_success(trainer("export " + adapter_base() + " " + (folder_ / "whole") + " --merge --adapter " +
                         (folder_ / "a") + "," + (folder_ / "b")));
  EXPECT_EQ(slurp(folder_ / "from_file/model.safetensors"), slurp(folder_ / "whole/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "from_file/tokenizer.json"));
  EXPECT_TRUE(fs::exists(folder_ / "from_file/generation_config.json"))
      << "with what ends the template's answers";
  const auto dtype = [&](const std::string& folder) {
    return weights::SafetensorsFile(folder + "/model.safetensors").tensors().front().dtype;
  };
  EXPECT_EQ(dtype(folder_ / "from_file"), DType::f32) << "that of the base";
  const std::pair<std::string, DType> formats[] = {{"export_dtype=fp16", DType::f16},
                                                   {"torch_dtype=bfloat16", DType::bf16},
                                                   {"infer_dtype=float16", DType::f16}};
  for (const auto& [key, expected] : formats) {
    expect_success(trainer("export " + file + " export_dir=" + (folder_ / key) + " " + key));
    EXPECT_EQ(dtype(folder_ / key), expected) << key;
  }
  expect_success(trainer("export " + file + " export_dir=" + (folder_ / "small") + " export_size=1e-5"));
  EXPECT_TRUE(fs::exists(folder_ / "small/model.safetensors.index.json"));
  expect_success(
      trainer("export " + file + " export_dir=" + (folder_ / "plain") + " adapter_name_or_path=null"));
  EXPECT_EQ(slurp(folder_ / "plain/model.safetensors"), slurp(adapter_base() + "/model.safetensors"))
      << "no adapter, the base";
}

TEST_F(AddedAdapters, WrongMergesAreRefusedAndLeaveNothing) {
  train_two();
  const std::string keys =
      "model_name_or_path: " + adapter_base() + "\nadapter_name_or_path: " + (folder_ / "a") + "\n";
  const std::string out = folder_ / "never";
  const std::string target = "export_dir: " + out + "\n";
  struct Wrong {
    std::string text, arguments, says;
  };
  const Wrong wrongs[] = {
      {keys, "", "'export_dir' is not given"},
      {"export_dir: " + out + "\n", "", "'model_name_or_path' is not given"},
      {keys + target + "quantization_bit: 4\n", "", "adapters are not merged into a quantised base"},
      {keys + target + "export_quantization_bit: 4\n", "", "export_quantization_bit"},
      {keys + target + "infer_dtype: int3\n", "", "infer_dtype"},
      {keys + target + "adapter_name: x\n", "", "adapter_name"},
      {keys + target, "adapter_name_or_path=" + (folder_ / "a") + ",,x", "empty name"},
      {keys + target, "adapter_name_or_path=" + (folder_ / "nowhere"), "the folder has no adapter"},
      {keys + target, "adapter_name_or_path=" + (folder_ / "b/checkpoint-3"), "trainer export"},
  };
  for (const auto& [text, arguments, says] : wrongs) {
    spill(folder_ / "merge.yaml", text);
    const Outcome run = trainer("export " + (folder_ / "merge.yaml") + " " + arguments);
    EXPECT_EQ(run.code, 64) << text << arguments << run.err;
    EXPECT_NE(run.err.find(says), std::string::npos) << says << ": " << run.err;
    EXPECT_FALSE(fs::exists(out)) << text;
  }
  const auto refused = [&](const std::string& command, const std::string& says) {
    const Outcome run = trainer(command);
    EXPECT_EQ(run.code, 64) << command;
    EXPECT_NE(run.err.find(says), std::string::npos) << command << ": " << run.err;
    EXPECT_FALSE(fs::exists(out));
  };
  refused("export " + (folder_ / "b/checkpoint-3"), "no folder to write");
  refused("export " + (folder_ / "b/checkpoint-3") + " " + (folder_ / "a"), "has an adapter already");
  refused("export " + (folder_ / "b/checkpoint-3") + " " + out + " lora_rank=3", "lora_rank=3");
}

}  // namespace
}  // namespace octet::test::added_adapters_test
