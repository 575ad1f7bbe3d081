// Training a part of the model: the saved files, resuming, and the whole model at the end.
#include <filesystem>

#include "cli/adapter_task.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/weights/safetensors.h"

namespace octet::test::freeze_test {
namespace {

namespace fs = std::filesystem;

std::string freeze(const std::string& output, const std::string& more = "") {
  return Task::get().train(output,
                           "model_name_or_path=" + adapter_base() +
                               " train_from_scratch=false finetuning_type=freeze "
                               "freeze_trainable_layers=1 freeze_trainable_modules=mlp "
                               "freeze_extra_modules=norm max_steps=6 save_steps=3 export_dtype=fp32 " +
                               more);
}

bool trained(const std::string& tensor) {
  return tensor.starts_with("model.layers.1.mlp.") || tensor == "model.norm.weight";
}

std::vector<float> values(const weights::SafetensorsFile& file, const std::string& name) {
  std::vector<float> all(static_cast<std::size_t>(file.at(name).count));
  file.read(name, 0, file.at(name).count, all.data());
  return all;
}

class Freeze : public testing::Test {
 protected:
  Freeze() : folder_("freeze") {}
  TemporaryFolder folder_;
};

TEST_F(Freeze, TheCheckpointHoldsWhatIsTrainedAndTheEndIsAWholeModel) {
  const Outcome run = trainer(freeze(folder_ / "out") + " learning_rate=3.0e-2");
  expect_success(run);
  EXPECT_NE(run.both().find("Number of trainable parameters = " + with_commas(3 * 32 * 48 + 32)),
            std::string::npos)
      << run.both();
  const checkpoint::Checkpoint saved(folder_ / "out/checkpoint-6");
  std::size_t parameters = 0;
  for (const auto& tensor : saved.tensors()) {
    const std::size_t slash = tensor.name.find('/');
    const bool parameter = slash == std::string::npos;
    EXPECT_TRUE(tensor.name == "optimizer/step" || trained(tensor.name.substr(parameter ? 0 : slash + 1)))
        << tensor.name;
    parameters += parameter ? 1 : 0;
  }
  EXPECT_EQ(parameters, 4u);
  const weights::SafetensorsFile before(adapter_base() + "/model.safetensors"),
      after(folder_ / "out/model.safetensors");
  EXPECT_EQ(before.tensors().size(), after.tensors().size());
  for (const auto& tensor : before.tensors()) {
    EXPECT_EQ(values(before, tensor.name) != values(after, tensor.name), trained(tensor.name)) << tensor.name;
  }
  expect_success(trainer("export " + (folder_ / "out/checkpoint-6") + " " + (folder_ / "again")));
  EXPECT_TRUE(slurp(folder_ / "again/model.safetensors") == slurp(folder_ / "out/model.safetensors"));
  EXPECT_TRUE(fs::exists(folder_ / "out/tokenizer.json"));
  EXPECT_LT(steps_of(folder_ / "out").at(6)["loss"].get<double>(),
            steps_of(folder_ / "out").at(1)["loss"].get<double>());
}

TEST_F(Freeze, ARunGoesOnBitForBitAndWithTheSamePartsAlone) {
  expect_success(trainer(freeze(folder_ / "whole")));
  const auto stopped = [&](const std::string& name) {
    fs::copy(folder_ / "whole", folder_ / name, fs::copy_options::recursive);
    fs::remove_all(folder_ / (name + "/checkpoint-6"));
    fs::remove(folder_ / (name + "/model.safetensors"));
    return folder_ / name;
  };
  expect_success(trainer(freeze(stopped("one"))));
  expect_identical(folder_ / "one/checkpoint-6", folder_ / "whole/checkpoint-6");
  const Outcome run = shell(OCTET_SOURCE_DIR "/launch/mpirun -np 2 " OCTET_TRAINER " " +
                            freeze(stopped("two"), "zero_stage=3"));
  ASSERT_EQ(run.code, 0) << run.both();
  expect_same_losses(folder_ / "two", folder_ / "whole", 1e-4);
  const std::string other = stopped("other");
  const auto refused = [&](const std::string& more, const std::string& says) {
    const Outcome outcome = trainer(freeze(other, more));
    EXPECT_EQ(outcome.code, 64) << more;
    EXPECT_NE(outcome.err.find(says), std::string::npos) << more << ": " << outcome.err;
  };
  refused("freeze_trainable_layers=2", "freeze_trainable_layers: 1");
  refused("freeze_extra_modules=embed_tokens", "freeze_extra_modules");
  refused("finetuning_type=full", "a part of the model");
  refused("finetuning_type=lora", "a part of the model");
  refused("output_dir=" + (folder_ / "fresh") + " freeze_trainable_modules=mpl", "did you mean 'mlp'");
}

}  // namespace
}  // namespace octet::test::freeze_test
