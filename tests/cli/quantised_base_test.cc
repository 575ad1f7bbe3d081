// Adapters beside a base in 4 bits, through the program: what bitsandbytes, PEFT and transformers compute
// (tests/golden/adapters), at every stage and number of ranks; folders that are quantised already; resumed
// and merged.
#include <cmath>
#include <filesystem>
#include <set>

#include "cli/task.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/safetensors_writer.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/adapters/";
const std::string kBase = OCTET_SOURCE_DIR "/tests/golden/models/llama3";

std::vector<float> floats(const checkpoint::SafetensorsFile& file, const std::string& name) {
  std::vector<float> all(static_cast<std::size_t>(file.at(name).count));
  file.read(name, 0, file.at(name).count, all.data());
  return all;
}

/// Relative Euclidean distance.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return 1e30;
  double apart = 0, size = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    apart += std::pow(static_cast<double>(a[i]) - static_cast<double>(b[i]), 2);
    size += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(apart / size);
}

class QuantisedBase : public testing::Test {
 protected:
  QuantisedBase() : folder_("quantised") {}

  /// A batch of integers from a reference file; tensors whose names begin with `prefix`.
  std::string batch(const checkpoint::SafetensorsFile& golden, const std::string& prefix, bool labels) {
    std::vector<std::vector<std::int64_t>> values;
    std::vector<TensorSlice> slices;
    values.reserve(2);
    for (const std::string tensor : {"input_ids", "labels"}) {
      const auto& stored = golden.at(prefix + (labels ? tensor : "input_ids"));
      values.emplace_back(static_cast<std::size_t>(stored.count));
      golden.read(stored.name, 0, stored.count, values.back().data());
      slices.push_back({tensor, DType::i64, stored.shape, 0, stored.count, values.back().data()});
    }
    checkpoint::write_safetensors(folder_ / "batch.safetensors", slices);
    return folder_ / "batch.safetensors";
  }
  Outcome probe(int np, const std::string& model, const std::string& batch, const std::string& keys) {
    return shell("timeout 120 " OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) +
                 " " OCTET_TRAINER " probe " + model + " --batch " + batch + " --out " +
                 (folder_ / "out.safetensors") + " device=cpu " + keys);
  }
  checkpoint::SafetensorsFile out() { return checkpoint::SafetensorsFile(folder_ / "out.safetensors"); }

  TemporaryFolder folder_;
};

TEST_F(QuantisedBase, ComputesWhatPeftComputesOverBitsandbytes) {
  for (const auto& [name, twice] :
       {std::pair<std::string, std::string>{"llama3-nf4", "false"}, {"llama3-nf4-dq", "true"}}) {
    const Json numbers = read_json(kGolden + name + "/golden.json");
    const checkpoint::SafetensorsFile golden(kGolden + name + "/golden.safetensors");
    const std::string keys =
        " bf16=false finetuning_type=lora quantization_bit=4 double_quantization=" + twice +
        " adapter_name_or_path=" + kGolden + name + "/adapter";
    const std::string one = batch(golden, "", true);
    for (const auto& [np, stage] : {std::pair{1, 0}, {2, 1}, {2, 3}, {3, 2}, {4, 0}, {4, 3}}) {
      SCOPED_TRACE(name + ", np " + std::to_string(np) + ", stage " + std::to_string(stage));
      const Outcome run = probe(np, kBase, one, keys + " zero_stage=" + std::to_string(stage));
      ASSERT_EQ(run.code, 0) << run.both();
      const auto found = out();
      EXPECT_LT(distance(floats(found, "logits"), floats(golden, "logits")), 1e-4);
      EXPECT_NEAR(floats(found, "loss")[0] / numbers["loss"].get<double>(), 1, 1e-5);
      std::size_t gradients = 0;
      for (const auto& tensor : golden.tensors()) {
        if (!tensor.name.starts_with("grad.")) continue;
        ++gradients;
        ASSERT_NE(found.find(tensor.name), nullptr) << tensor.name;
        EXPECT_LT(distance(floats(found, tensor.name), floats(golden, tensor.name)), 1e-3) << tensor.name;
      }
      EXPECT_EQ(found.tensors().size(), gradients + 2) << "logits, loss and what is trained";
      EXPECT_EQ(gradients, 28u);
    }
    const std::string ten = batch(golden, "adamw.", true);
    for (const auto& [np, stage] : {std::pair{1, 0}, {2, 3}}) {
      const Outcome run = probe(np, kBase, ten,
                                keys +
                                    " --steps 10 learning_rate=1e-3 weight_decay=0.01 "
                                    "max_grad_norm=1 zero_stage=" +
                                    std::to_string(stage));
      ASSERT_EQ(run.code, 0) << run.both();
      const auto found = out();
      const auto losses = floats(found, "step_loss"), norms = floats(found, "step_grad_norm");
      for (std::size_t i = 0; i < 10; ++i) {
        EXPECT_NEAR(losses[i] / numbers["adamw"]["loss"][i].get<double>(), 1, 1e-4) << name << " step " << i;
        EXPECT_NEAR(norms[i] / numbers["adamw"]["grad_norm"][i].get<double>(), 1, 1e-3)
            << name << " step " << i;
      }
    }
  }
}

TEST_F(QuantisedBase, IsNotTheUnquantisedOne) {
  const checkpoint::SafetensorsFile golden(kGolden + "llama3-nf4/golden.safetensors");
  const std::string keys =
      " bf16=false finetuning_type=lora adapter_name_or_path=" + kGolden + "llama3-nf4/adapter";
  ASSERT_EQ(probe(1, kBase, batch(golden, "", true), keys).code, 0);
  EXPECT_GT(distance(floats(out(), "logits"), floats(golden, "logits")), 1e-2);
}

TEST_F(QuantisedBase, FoldersOfTransformersIn4BitsAreReadAsTheyAre) {
  for (const std::string name : {"saved-nf4", "saved-nf4-dq-bf16-storage"}) {
    const std::string model = kGolden + name;
    const checkpoint::SafetensorsFile golden(model + "/golden.safetensors");
    const std::string one = batch(golden, "", false);
    for (const auto& [np, keys] : {std::pair<int, std::string>{1, "finetuning_type=lora"},
                                   {1, "finetuning_type=lora quantization_bit=4 double_quantization=false"},
                                   {2, "finetuning_type=lora zero_stage=3"},
                                   {1, "finetuning_type=full"}}) {
      SCOPED_TRACE(name + " np " + std::to_string(np) + " " + keys);
      const Outcome run = probe(np, model, one, "bf16=false " + keys);
      ASSERT_EQ(run.code, 0) << run.both();
      const auto found = out();
      EXPECT_LT(distance(floats(found, "logits"), floats(golden, "logits")), 1e-5);
    }
  }
}

/// A base model: the task's shape after a few steps, as weights.
const std::string& base() {
  static const TemporaryFolder folder("quantised_base");
  static const std::string path = [] {
    const Outcome run =
        trainer(Task::get().train(folder / "base", "max_steps=4 save_strategy=no export_dtype=fp32"));
    if (run.code != 0) throw std::runtime_error(run.both());
    return folder / "base";
  }();
  return path;
}

std::string qlora(const std::string& output, const std::string& more = "") {
  return Task::get().train(output, "model_name_or_path=" + base() +
                                       " train_from_scratch=false finetuning_type=lora quantization_bit=4 "
                                       "lora_rank=4 max_steps=6 save_steps=3 " +
                                       more);
}

TEST_F(QuantisedBase, ARunGoesOnBitForBitAndSavesNothingOfTheBase) {
  expect_success(trainer(qlora(folder_ / "whole")));
  const checkpoint::Checkpoint saved(folder_ / "whole/checkpoint-6");
  for (const auto& tensor : saved.tensors()) {
    EXPECT_TRUE(tensor.name.find("lora_") != std::string::npos || tensor.name.starts_with("optimizer/"))
        << tensor.name;
  }
  fs::copy(folder_ / "whole", folder_ / "stopped", fs::copy_options::recursive);
  fs::remove_all(folder_ / "stopped/checkpoint-6");
  for (const char* left : {"adapter_config.json", "adapter_model.safetensors"})
    fs::remove(folder_ / ("stopped/" + std::string(left)));
  fs::copy(folder_ / "stopped", folder_ / "other", fs::copy_options::recursive);
  expect_success(trainer(qlora(folder_ / "stopped")));
  expect_identical(folder_ / "stopped/checkpoint-6", folder_ / "whole/checkpoint-6");
  // Over other codes it would go on as another model.
  const Outcome plain = trainer(qlora(folder_ / "other", "double_quantization=false"));
  EXPECT_EQ(plain.code, 64);
  EXPECT_NE(plain.err.find("double_quantization"), std::string::npos) << plain.err;
}

}  // namespace
}  // namespace octet::test
