// Adapters on a 4-bit base, tested through the program: results of bitsandbytes, PEFT and transformers
// (tests/golden/adapters) at every stage and number of ranks; folders that are already quantised; resuming
// and merging.
#include <cmath>
#include <filesystem>
#include <functional>

#include "cli/adapter_task.h"
#include "cli/safetensors_contents.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/weights/safetensors.h"
#include "octet/weights/safetensors_writer.h"

namespace octet::test::quantised_base_test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/adapters/";
const std::string kBase = OCTET_SOURCE_DIR "/tests/golden/models/llama3";

std::vector<float> floats(const weights::SafetensorsFile& file, const std::string& name) {
  std::vector<float> all(static_cast<std::size_t>(file.at(name).count));
  file.read(name, 0, file.at(name).count, all.data());
  return all;
}

/// Returns the relative Euclidean distance.
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

  /// Writes a batch from a reference file, from tensors with names that begin with `prefix`, and returns its
  /// path.
  std::string batch(const weights::SafetensorsFile& golden, const std::string& prefix, bool labels) {
    std::vector<std::vector<std::int64_t>> values;
    std::vector<TensorSlice> slices;
    values.reserve(2);
    for (const std::string tensor : {"input_ids", "labels"}) {
      const auto& stored = golden.at(prefix + (labels ? tensor : "input_ids"));
      values.emplace_back(static_cast<std::size_t>(stored.count));
      golden.read(stored.name, 0, stored.count, values.back().data());
      slices.push_back({tensor, DType::i64, stored.shape, 0, stored.count, values.back().data()});
    }
    weights::write_safetensors(folder_ / "batch.safetensors", slices);
    return folder_ / "batch.safetensors";
  }
  Outcome probe(int np, const std::string& model, const std::string& batch, const std::string& keys) {
    return shell("timeout 120 " OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) +
                 " " OCTET_TRAINER " probe " + model + " --batch " + batch + " --out " +
                 (folder_ / "out.safetensors") + " device=cpu " + keys);
  }
  weights::SafetensorsFile out() { return weights::SafetensorsFile(folder_ / "out.safetensors"); }

  using Ways = std::vector<std::pair<int, int>>;  ///< world sizes and stages

  /// Compares logits, loss and gradients of a batch, and ten steps.
  void expect_what_peft_computes(const std::string& name, const Ways& forward, const Ways& steps) {
    const std::string twice = name.ends_with("-dq") ? "true" : "false";
    const Json numbers = read_json(kGolden + name + "/golden.json");
    const weights::SafetensorsFile golden(kGolden + name + "/golden.safetensors");
    const std::string keys =
        " bf16=false finetuning_type=lora quantization_bit=4 double_quantization=" + twice +
        " adapter_name_or_path=" + kGolden + name + "/adapter";
    const std::string one = batch(golden, "", true);
    for (const auto& [np, stage] : forward) {
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
    for (const auto& [np, stage] : steps) {
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

  struct Strict {
    int np;
    std::string keys;
  };
  const std::vector<Strict> strict_{
      {2, " zero_stage=3"}, {4, " zero_stage=3 overlap_comm=false"}, {4, " zero_stage=1"}};
  const std::vector<std::string> recipes_{"", " bf16=true fp8=true fp8_recipe=current",
                                          " bf16=true fp8=true fp8_recipe=block", " recompute=full"};

  /// Expects equal bits of the adapter on one rank and in `others`.
  void expect_same_bits(const std::string& keys, const std::vector<Strict>& others);

  TemporaryFolder folder_;
};

class WholeQuantisedBase : public QuantisedBase {};

TEST_F(QuantisedBase, ComputesWhatPeftComputesOverBitsandbytes) {
  expect_what_peft_computes("llama3-nf4", {{1, 0}, {4, 3}}, {{1, 0}});
  expect_what_peft_computes("llama3-nf4-dq", {{2, 1}, {3, 2}}, {{2, 3}});
}

TEST_F(WholeQuantisedBase, ComputesWhatPeftComputesAtEveryStage) {
  for (const char* name : {"llama3-nf4", "llama3-nf4-dq"})
    expect_what_peft_computes(name, {{1, 0}, {2, 1}, {2, 3}, {3, 2}, {4, 0}, {4, 3}}, {{1, 0}, {2, 3}});
}

TEST_F(QuantisedBase, IsNotTheUnquantisedOne) {
  const weights::SafetensorsFile golden(kGolden + "llama3-nf4/golden.safetensors");
  const std::string keys =
      " bf16=false finetuning_type=lora adapter_name_or_path=" + kGolden + "llama3-nf4/adapter";
  ASSERT_EQ(probe(1, kBase, batch(golden, "", true), keys).code, 0);
  EXPECT_GT(distance(floats(out(), "logits"), floats(golden, "logits")), 1e-2);
}

TEST_F(WholeQuantisedBase, FoldersOfTransformersIn4BitsAreReadAsTheyAre) {
  for (const std::string name : {"saved-nf4", "saved-nf4-dq-bf16-storage"}) {
    const std::string model = kGolden + name;
    const weights::SafetensorsFile golden(model + "/golden.safetensors");
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

TEST_F(WholeQuantisedBase, ModulesThatWereSkippedStayAsTheyAre) {
  const weights::SafetensorsFile golden(kGolden + "saved-nf4/golden.safetensors");
  const std::string one = batch(golden, "", false), folder = folder_ / "skipped";
  fs::create_directories(folder);
  fs::copy(kGolden + "saved-nf4/config.json", folder + "/config.json");
  Contents changed(kGolden + "saved-nf4/model.safetensors");
  const Contents plain(kBase + "/model.safetensors");
  for (const std::string name :
       {"model.layers.0.self_attn.k_proj.weight", "model.layers.1.mlp.down_proj.weight"}) {
    std::erase_if(changed.all, [&](const auto& entry) { return entry.first.starts_with(name); });
    changed.all[name] = plain.all.at(name);
  }
  changed.write(folder + "/model.safetensors");
  ASSERT_EQ(probe(1, folder, one, "bf16=false finetuning_type=full").code, 0);
  const auto decoded = floats(out(), "logits");
  EXPECT_GT(distance(decoded, floats(golden, "logits")), 1e-3) << "they differ from their codes";
  for (const auto& [np, stage] : {std::pair{1, 0}, {2, 3}, {3, 3}}) {
    const Outcome run =
        probe(np, folder, one, "bf16=false finetuning_type=lora zero_stage=" + std::to_string(stage));
    ASSERT_EQ(run.code, 0) << run.both();
    // In smaller batches, CPUs may sum a row in another order.
    EXPECT_LT(distance(floats(out(), "logits"), decoded), 1e-6) << "np " << np;
  }
}

TEST_F(QuantisedBase, FineGrainedFp8IsDecodedOnTheWayIn) {
  const weights::SafetensorsFile golden(kGolden + "saved-nf4/golden.safetensors");
  const std::string one = batch(golden, "", false);
  const auto [fp8, decoded] = write_fp8_folders(kBase, folder_.path());
  for (const std::string keys : {"finetuning_type=full", "finetuning_type=lora quantization_bit=4"}) {
    std::vector<std::vector<float>> logits;
    for (const std::string& folder : {fp8, decoded}) {
      const Outcome run = probe(1, folder, one, "bf16=false " + keys);
      ASSERT_EQ(run.code, 0) << run.both();
      logits.push_back(floats(out(), "logits"));
    }
    EXPECT_EQ(logits[0], logits[1]) << keys;
  }
}

TEST_F(QuantisedBase, WhatCannotBeReadIsRefusedAndLeavesNothing) {
  const weights::SafetensorsFile golden(kGolden + "saved-nf4/golden.safetensors");
  const std::string one = batch(golden, "", false);
  const auto refused = [&](const std::string& says, const std::string& keys,
                           const std::function<void(Contents&, Json&)>& change) {
    const std::string folder = folder_ / "broken";
    fs::remove_all(folder);
    fs::create_directories(folder);
    Contents contents(kGolden + "saved-nf4-dq-bf16-storage/model.safetensors");
    Json config = read_json(kGolden + "saved-nf4-dq-bf16-storage/config.json");
    change(contents, config);
    contents.write(folder + "/model.safetensors");
    spill(folder + "/config.json", config.dump());
    const Outcome run = probe(2, folder, one, "bf16=false " + keys);
    EXPECT_EQ(run.code, 64) << says << ": " << run.both();
    EXPECT_NE(run.err.find(says), std::string::npos) << says << ": " << run.err;
    EXPECT_FALSE(fs::exists(folder_ / "out.safetensors")) << says;
  };
  const std::string name = "model.layers.0.self_attn.q_proj.weight", lora = "finetuning_type=lora";
  const auto nothing = [](Contents&, Json&) {};
  refused("needs 'finetuning_type: lora'", "finetuning_type=full quantization_bit=4", nothing);
  refused("'quantization_bit: 3' is not supported", lora + " quantization_bit=3", nothing);
  refused("'quantization_bit: 8' is not supported", lora + " quantization_bit=8", nothing);
  refused("GPTQ", lora, [](Contents&, Json& c) { c["quantization_config"]["quant_method"] = "gptq"; });
  refused("the codes of a quantised tensor do not fit", lora, [&](Contents& t, Json&) {
    t.all.at(name).bytes.resize(2046);
    t.all.at(name).shape = {1023, 1};
  });
  refused("lacks a part", lora, [&](Contents& t, Json&) { t.all.erase(name + ".absmax"); });
  refused("has the wrong shape", "finetuning_type=full", [&](Contents& t, Json&) {
    auto& state = t.all.at(name + ".quant_state.bitsandbytes__nf4");
    const auto at = state.bytes.find("[64, 64]");
    state.bytes.replace(at, 8, "[32,128]");
  });
  refused("has the wrong shape", lora, [&](Contents& t, Json&) {
    auto& state = t.all.at(name + ".quant_state.bitsandbytes__nf4");
    const auto at = state.bytes.find("[64, 64]");
    state.bytes.replace(at, 8, "[32,128]");
  });
  refused("is quantised differently from the other tensors", lora,
          [](Contents&, Json& c) { c["quantization_config"]["bnb_4bit_use_double_quant"] = false; });
}

std::string qlora(const std::string& output, const std::string& more = "") {
  return Task::get().train(output, "model_name_or_path=" + adapter_base() +
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
  // With other codes, the base would be another model.
  const Outcome plain = trainer(qlora(folder_ / "other", "double_quantization=false"));
  EXPECT_EQ(plain.code, 64);
  EXPECT_NE(plain.err.find("double_quantization"), std::string::npos) << plain.err;
}

void QuantisedBase::expect_same_bits(const std::string& keys, const std::vector<Strict>& others) {
  std::vector<Strict> runs{{1, ""}};
  runs.insert(runs.end(), others.begin(), others.end());
  std::string first;
  for (const auto& [np, how] : runs) {
    const std::string output = folder_ / "strict";
    fs::remove_all(output);
    const Outcome run = trainer(qlora(output,
                                      "save_strategy=no max_steps=2 deterministic=strict "
                                      "per_device_train_batch_size=3" +
                                          keys + how),
                                np);
    ASSERT_EQ(run.code, 0) << run.both();
    const std::string weights = slurp(output + "/adapter_model.safetensors");
    if (first.empty()) first = weights;
    EXPECT_TRUE(weights == first) << keys << ", np " << np << how;
  }
}

// Each recipe with one configuration.
TEST_F(WholeQuantisedBase, BitsOfARunDoNotDependOnStageOverlapOrRanks) {
  for (std::size_t i = 0; i < recipes_.size(); ++i)
    expect_same_bits(recipes_[i], {strict_[i % strict_.size()]});
}

TEST_F(WholeQuantisedBase, BitsOfEveryRecipeDoNotDependOnStageOverlapOrRanks) {
  for (const std::string& keys : recipes_) expect_same_bits(keys, strict_);
}

TEST_F(WholeQuantisedBase, AnAdapterIsMergedIntoWhatTheFolderHolds) {
  // The folder holds codes and a new adapter adds nothing, so the merged model has the decoded values.
  const weights::SafetensorsFile golden(kGolden + "saved-nf4/golden.safetensors");
  const std::string one = batch(golden, "", false), adapter = folder_ / "adapter";
  fs::create_directories(adapter);
  fs::copy(kGolden + "llama3-nf4/adapter", adapter, fs::copy_options::recursive);
  Contents zero(adapter + "/adapter_model.safetensors");
  for (auto& [name, tensor] : zero.all) {
    if (name.find("lora_B") != std::string::npos) std::fill(tensor.bytes.begin(), tensor.bytes.end(), '\0');
  }
  zero.write(adapter + "/adapter_model.safetensors");
  const Outcome merged = trainer("export " + adapter + " " + (folder_ / "merged") +
                                 " --merge --dtype fp32 --model " + kGolden + "saved-nf4");
  ASSERT_EQ(merged.code, 0) << merged.both();
  EXPECT_NE(merged.both().find("the dequantised weights of"), std::string::npos) << merged.both();
  EXPECT_FALSE(read_json(folder_ / "merged/config.json").contains("quantization_config"));
  const Outcome run = probe(1, folder_ / "merged", one, "bf16=false");
  ASSERT_EQ(run.code, 0) << run.both();
  EXPECT_LT(distance(floats(out(), "logits"), floats(golden, "logits")), 1e-5);
  // A run that quantised its base itself merges into the original weights.
  expect_success(trainer(qlora(folder_ / "new", "learning_rate=0 max_steps=2")));
  const Outcome plain =
      trainer("export " + (folder_ / "new") + " " + (folder_ / "same") + " --merge --dtype fp32");
  ASSERT_EQ(plain.code, 0) << plain.both();
  EXPECT_NE(plain.both().find("is merged into the weights of"), std::string::npos) << plain.both();
  EXPECT_EQ(slurp(folder_ / "same/model.safetensors"), slurp(adapter_base() + "/model.safetensors"));
}

}  // namespace
}  // namespace octet::test::quantised_base_test
