// Adapters from a configuration to a finished folder: training at every stage, saving and resuming.
#include <filesystem>

#include "cli/adapter_task.h"
#include "octet/base/json.h"
#include "octet/checkpoint/checkpoint.h"

namespace octet::test::adapters_test {
namespace {

namespace fs = std::filesystem;

const std::string kGolden = OCTET_SOURCE_DIR "/tests/golden/adapters/";
const std::string kModels = OCTET_SOURCE_DIR "/tests/golden/models/";

class Adapters : public testing::Test {
 protected:
  Adapters() : folder_("adapters") {}
  TemporaryFolder folder_;
};

TEST_F(Adapters, TenStepsAreThoseOfPeft) {
  for (const std::string name : {"llama3-lora", "llama3-save", "llama3-dora"}) {
    const Json numbers = read_json(kGolden + name + "/golden.json");
    const weights::SafetensorsFile golden(kGolden + name + "/golden.safetensors");
    std::vector<std::vector<std::int64_t>> values;
    std::vector<TensorSlice> slices;
    values.reserve(2);
    for (const std::string tensor : {"input_ids", "labels"}) {
      const auto& stored = golden.at("adamw." + tensor);
      values.emplace_back(static_cast<std::size_t>(stored.count));
      golden.read(stored.name, 0, stored.count, values.back().data());
      slices.push_back({tensor, DType::i64, stored.shape, 0, stored.count, values.back().data()});
    }
    weights::write_safetensors(folder_ / "batch.safetensors", slices);
    for (const auto& [np, stage] : {std::pair{1, 0}, {2, 1}, {2, 3}}) {
      const Outcome run =
          shell(OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " " OCTET_TRAINER " probe " +
                kModels + "llama3 --batch " + (folder_ / "batch.safetensors") + " --out " +
                (folder_ / "out.safetensors") +
                " --steps 10 bf16=false finetuning_type=lora adapter_name_or_path=" + kGolden + name +
                "/adapter learning_rate=1e-3 weight_decay=0.01 max_grad_norm=1 zero_stage=" +
                std::to_string(stage));
      ASSERT_EQ(run.code, 0) << run.both();
      const weights::SafetensorsFile out(folder_ / "out.safetensors");
      const auto read = [&](const std::string& tensor) {
        std::vector<float> all(static_cast<std::size_t>(out.at(tensor).count));
        out.read(tensor, 0, out.at(tensor).count, all.data());
        return all;
      };
      const auto losses = read("step_loss"), norms = read("step_grad_norm");
      for (std::size_t i = 0; i < 10; ++i) {
        EXPECT_NEAR(losses[i], numbers["adamw"]["loss"][i].get<double>(), 1e-4) << name << " step " << i;
        EXPECT_NEAR(norms[i] / numbers["adamw"]["grad_norm"][i].get<double>(), 1, 1e-3)
            << name << " step " << i;
      }
      for (const auto& tensor : out.tensors()) {
        if (!tensor.name.starts_with("final.")) continue;
        EXPECT_TRUE(tensor.name.starts_with("final.base_model.model."))
            << "only what is trained: " << tensor.name;
      }
    }
  }
}

TEST_F(Adapters, AFinishedRunLeavesWhatPeftReads) {
  const Outcome run = trainer(lora(folder_ / "out", "additional_target=embed_tokens"));
  expect_success(run);
  // Rank 4 at q, k, v, o, gate, up and down of two blocks, and the table of 512 rows.
  const int block = 4 * ((32 + 32) + 2 * (32 + 16) + (32 + 32) + 3 * (32 + 48));
  EXPECT_NE(run.both().find("Number of trainable parameters = " + with_commas(2 * block + 512 * 32)),
            std::string::npos)
      << run.both();
  const Json config = read_json(folder_ / "out/adapter_config.json");
  EXPECT_EQ(config["peft_type"], "LORA");
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["target_modules"],
            Json::array({"down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"}));
  EXPECT_EQ(config["base_model_name_or_path"], adapter_base());
  EXPECT_EQ(config["modules_to_save"], Json::array({"embed_tokens"}));
  const weights::SafetensorsFile file(folder_ / "out/adapter_model.safetensors");
  EXPECT_EQ(file.at("base_model.model.model.layers.1.mlp.down_proj.lora_A.weight").shape,
            (std::vector<std::int64_t>{4, 48}));
  EXPECT_EQ(file.at("base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight").shape,
            (std::vector<std::int64_t>{32, 4}));
  EXPECT_EQ(file.at("base_model.model.model.embed_tokens.weight").dtype, DType::f32);
  // Two blocks of seven modules with two matrices each, and the table under its name (tied: under both).
  const bool tied = file.find("base_model.model.lm_head.weight") != nullptr;
  EXPECT_EQ(file.tensors().size(), 2 * 7 * 2 + 1u + (tied ? 1u : 0u));
  EXPECT_EQ(config.contains("ensure_weight_tying"), tied);
  EXPECT_TRUE(fs::exists(folder_ / "out/tokenizer.json"));
  EXPECT_FALSE(fs::exists(folder_ / "out/model.safetensors"));
}

TEST_F(Adapters, ACheckpointHoldsWhatIsTrainedAndARunGoesOnBitForBit) {
  expect_success(trainer(lora(folder_ / "whole")));
  expect_success(trainer(lora(folder_ / "cut", "max_steps=3")));
  const checkpoint::Checkpoint cut(folder_ / "cut/checkpoint-3");
  for (const auto& tensor : cut.tensors()) {
    const bool adapter =
        tensor.name.find("lora_") != std::string::npos || tensor.name.starts_with("optimizer/");
    EXPECT_TRUE(adapter) << tensor.name;
  }
  std::int64_t bytes = 0;
  for (const auto& tensor : cut.tensors()) bytes += weights::byte_count(tensor);
  std::uintmax_t on_disk = 0;
  for (const auto& file : fs::directory_iterator(folder_ / "cut/checkpoint-3")) on_disk += file.file_size();
  // Apart from the tensors there are two texts of 16 KiB each, HDF5's own records and the manifest.
  EXPECT_LE(static_cast<double>(on_disk), 1.05 * static_cast<double>(bytes) + 98304);
  for (const char* left : {"adapter_config.json", "adapter_model.safetensors"})
    fs::remove(folder_ / ("cut/" + std::string(left)));
  // A run with a schedule of six steps that was stopped after three gives the same bits as a run without the
  // stop.
  expect_success(trainer(lora(folder_ / "stopped", "save_steps=3")));
  fs::remove_all(folder_ / "stopped/checkpoint-6");
  for (const char* left : {"adapter_config.json", "adapter_model.safetensors"})
    fs::remove(folder_ / ("stopped/" + std::string(left)));
  for (const auto& [np, stage] : {std::pair{1, 0}, {2, 3}}) {
    const std::string copy = folder_ / ("copy" + std::to_string(np));
    fs::copy(folder_ / "stopped", copy, fs::copy_options::recursive);
    const Outcome run = shell(OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) +
                              " " OCTET_TRAINER " " + lora(copy, "zero_stage=" + std::to_string(stage)));
    ASSERT_EQ(run.code, 0) << run.both();
    if (np == 1) expect_identical(copy + "/checkpoint-6", folder_ / "whole/checkpoint-6");
    if (np == 2) expect_same_losses(copy, folder_ / "whole", 1e-4);
  }
}

// W + factor · B A. With a new adapter, the result has the base's bytes. With a trained adapter, the merged
// model computes the same.
TEST_F(Adapters, AreMergedIntoAWholeModel) {
  expect_success(trainer(lora(folder_ / "new", "learning_rate=0 max_steps=2")));
  expect_success(trainer("export " + (folder_ / "new") + " " + (folder_ / "same") + " --merge --dtype fp32"));
  EXPECT_EQ(slurp(folder_ / "same/model.safetensors"), slurp(adapter_base() + "/model.safetensors"));

  expect_success(trainer(lora(folder_ / "out", "additional_target=embed_tokens use_rslora=true")));
  // Left-overs of a killed export with the same process number do no harm.
  const std::string left = (folder_ / "whole") + ".adapter.tmp-$$";
  expect_success(shell("mkdir " + left + " && echo half >" + left + "/adapter_model.safetensors && exec " +
                       OCTET_TRAINER " export " + (folder_ / "out/checkpoint-6") + " " + (folder_ / "whole") +
                       " --merge"));
  expect_success(trainer("export " + (folder_ / "out/checkpoint-6") + " " + (folder_ / "again")));
  EXPECT_EQ(slurp(folder_ / "again/adapter_model.safetensors"),
            slurp(folder_ / "out/adapter_model.safetensors"));
  const auto loss = [&](const std::string& keys) {
    const Outcome run = trainer(Task::get().train(
        folder_ / "loss",
        "overwrite_output_dir=true train_from_scratch=false max_steps=1 learning_rate=0 " + keys));
    EXPECT_EQ(run.code, 0) << run.both();
    return steps_of(folder_ / "loss").at(1)["loss"].get<double>();
  };
  const double adapted = loss("model_name_or_path=" + adapter_base() +
                              " finetuning_type=lora adapter_name_or_path=" + (folder_ / "out"));
  const double merged = loss("model_name_or_path=" + (folder_ / "whole"));
  EXPECT_NEAR(merged / adapted, 1, 1e-5);
  EXPECT_GT(std::abs(loss("model_name_or_path=" + adapter_base()) / adapted - 1), 1e-4);

  const auto refused = [&](const std::string& command, const std::string& says) {
    const Outcome run = trainer(command);
    EXPECT_EQ(run.code, 64) << command;
    EXPECT_NE(run.err.find(says), std::string::npos) << run.err;
  };
  refused("export " + (folder_ / "out") + " " + (folder_ / "no"), "--merge");
  fs::rename(adapter_base(), adapter_base() + "-moved");
  refused("export " + (folder_ / "out") + " " + (folder_ / "no") + " --merge", "base model of the adapter");
  fs::rename(adapter_base() + "-moved", adapter_base());
  EXPECT_FALSE(fs::exists(folder_ / "no"));
}

/// Runs before a release only.
class WholeAdapters : public Adapters {};

// Magnitudes of queries alone do not change keys and values, although one GEMM computes all three.
TEST_F(WholeAdapters, MagnitudesOfOneModuleLeaveTheOthersOfItsProduct) {
  for (const std::string module : {"q_proj", "gate_proj"}) {
    const std::string out = folder_ / module;
    expect_success(trainer(lora(out, "learning_rate=0.01 use_dora=true lora_target=" + module)));
    expect_success(trainer("export " + out + " " + out + "-whole --merge --dtype fp32"));
    const auto apart = probed(folder_, adapter_base(), "finetuning_type=lora adapter_name_or_path=" + out);
    EXPECT_LT(distance(apart, probed(folder_, out + "-whole")), 1e-5) << module;
    EXPECT_GT(distance(apart, probed(folder_, adapter_base())), 1e-4) << module << " is trained";
  }
}

// The norms of the merged weight's rows are the magnitudes. A new adapter has the base's norms as magnitudes,
// so it changes the base only by rounding.
TEST_F(WholeAdapters, WithMagnitudesAreMergedIntoAWholeModel) {
  expect_success(trainer(lora(folder_ / "out", "use_dora=true loraplus_lr_ratio=4")));
  const Json config = read_json(folder_ / "out/adapter_config.json");
  EXPECT_EQ(config["use_dora"], true);
  const weights::SafetensorsFile file(folder_ / "out/adapter_model.safetensors");
  EXPECT_EQ(file.at("base_model.model.model.layers.1.self_attn.k_proj.lora_magnitude_vector").shape,
            (std::vector<std::int64_t>{16}));
  expect_success(
      trainer("export " + (folder_ / "out") + " " + (folder_ / "whole") + " --merge --dtype fp32"));
  const auto loss = [&](const std::string& keys) {
    const Outcome run = trainer(Task::get().train(
        folder_ / "loss",
        "overwrite_output_dir=true train_from_scratch=false max_steps=1 learning_rate=0 " + keys));
    EXPECT_EQ(run.code, 0) << run.both();
    return steps_of(folder_ / "loss").at(1)["loss"].get<double>();
  };
  const double plain = loss("model_name_or_path=" + adapter_base());
  const double fresh = loss("model_name_or_path=" + adapter_base() + " finetuning_type=lora use_dora=true");
  EXPECT_NEAR(fresh / plain, 1, 1e-6);
  const double adapted = loss("model_name_or_path=" + adapter_base() +
                              " finetuning_type=lora adapter_name_or_path=" + (folder_ / "out"));
  EXPECT_NEAR(loss("model_name_or_path=" + (folder_ / "whole")) / adapted, 1, 1e-5);
  EXPECT_GT(std::abs(plain / adapted - 1), 1e-4);
}

// Dropout noise depends on seed, step, sample and position. It does not depend on the rank, the micro-batch
// or the pass.
TEST_F(WholeAdapters, DropoutIsTheSameAtAnyNumberOfRanksAndInRecomputation) {
  const auto trained = [&](const std::string& name, int np, const std::string& keys) {
    const Outcome run =
        shell(OCTET_SOURCE_DIR "/launch/mpirun -np " + std::to_string(np) + " " OCTET_TRAINER " " +
              lora(folder_ / name, "deterministic=strict save_strategy=no " + keys));
    EXPECT_EQ(run.code, 0) << run.both();
    return slurp(folder_ / (name + "/adapter_model.safetensors"));
  };
  const std::string one = trained("one", 1, "lora_dropout=0.1");
  EXPECT_TRUE(trained("two", 2, "lora_dropout=0.1 zero_stage=3") == one);
  EXPECT_TRUE(trained("again", 1, "lora_dropout=0.1 recompute=full") == one);
  EXPECT_FALSE(trained("none", 1, "") == one);
  EXPECT_EQ(read_json(folder_ / "one/adapter_config.json")["lora_dropout"], 0.1);
}

// Weights are written last: a failure before that leaves a folder without weights.
TEST_F(Adapters, WeightsComeLast) {
  expect_success(trainer(lora(folder_ / "out", "max_steps=3")));
  const std::string checkpoint = folder_ / "out/checkpoint-3";
  expect_success(trainer("export " + checkpoint + " " + (folder_ / "whole")));
  for (const char* file : {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"})
    EXPECT_TRUE(fs::exists(folder_ / ("whole/" + std::string(file)))) << file;
  for (const std::string merge : {"", " --merge"}) {
    const std::string folder = folder_ / ("blocked" + std::to_string(merge.size()));
    fs::create_directories(folder + "/tokenizer.json/in the way");
    const Outcome run = trainer("export " + checkpoint + " " + folder + merge);
    EXPECT_NE(run.code, 0) << merge;
    for (const char* weights : {"/adapter_model.safetensors", "/model.safetensors"})
      EXPECT_FALSE(fs::exists(folder + weights)) << run.both();
  }
}

TEST_F(Adapters, AnotherBaseOrOtherAdaptersAreNotGoneOnWith) {
  expect_success(trainer(lora(folder_ / "out", "max_steps=3")));
  fs::remove(folder_ / "out/adapter_config.json"), fs::remove(folder_ / "out/adapter_model.safetensors");
  const auto refused = [&](const std::string& more, const std::string& says) {
    const Outcome run = trainer(lora(folder_ / "out", more));
    EXPECT_EQ(run.code, 64) << more;
    EXPECT_NE(run.err.find(says), std::string::npos) << more << ": " << run.err;
  };
  refused("lora_rank=8 lora_alpha=8", "r: 4");
  refused("lora_alpha=3", "lora_alpha: 8");
  refused("lora_target=q_proj", "target_modules");
  refused("finetuning_type=full", "trained adapters");
  fs::copy(adapter_base(), folder_ / "other", fs::copy_options::recursive);
  const std::string weights = folder_ / "other/model.safetensors";
  std::string bytes = slurp(weights);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  spill(weights, bytes);
  refused("model_name_or_path=" + (folder_ / "other"), "weights of the base model differ");
}

TEST_F(Adapters, AnAdapterOfAnotherModelIsRefused) {
  expect_success(trainer(lora(folder_ / "out", "max_steps=2 save_strategy=no lora_target=q_proj,v_proj")));
  const auto refused = [&](const std::string& adapter, const std::string& says) {
    const Outcome run = trainer(lora(folder_ / "next", "adapter_name_or_path=" + adapter));
    EXPECT_EQ(run.code, 64) << adapter;
    EXPECT_NE(run.err.find(says), std::string::npos) << says << ": " << run.err;
    EXPECT_FALSE(fs::exists(folder_ / "next/checkpoint-3"));
  };
  refused(folder_ / "nowhere", "the folder has no adapter");
  refused(kGolden + "llama3-lora/adapter", "does not fit the model");
  const auto changed = [&](const std::string& name, const std::function<void(Json&)>& change) {
    fs::copy(folder_ / "out", folder_ / name, fs::copy_options::recursive);
    Json config = read_json(folder_ / (name + "/adapter_config.json"));
    change(config);
    spill(folder_ / (name + "/adapter_config.json"), config.dump());
    return folder_ / name;
  };
  refused(changed("rank", [](Json& c) { c["r"] = 8; }), "does not fit the model");
  refused(changed("more", [](Json& c) { c["target_modules"].push_back("k_proj"); }), "lacks a tensor");
  refused(changed("less", [](Json& c) { c["target_modules"] = {"q_proj"}; }), "has no place in the model");
  refused(changed("ia3", [](Json& c) { c["peft_type"] = "IA3"; }), "another method");
  fs::copy(folder_ / "out", folder_ / "cut", fs::copy_options::recursive);
  fs::resize_file(folder_ / "cut/adapter_model.safetensors", 5000);
  const Outcome cut = trainer(lora(folder_ / "next", "adapter_name_or_path=" + (folder_ / "cut")));
  EXPECT_NE(cut.code, 0);
  EXPECT_NE(cut.err.find("adapter_model.safetensors"), std::string::npos) << cut.err;
  fs::copy(folder_ / "out", folder_ / "nan", fs::copy_options::recursive);
  std::string bytes = slurp(folder_ / "nan/adapter_model.safetensors");
  bytes.replace(bytes.size() - 4, 4, "\xff\xff\xff\x7f");
  spill(folder_ / "nan/adapter_model.safetensors", bytes);
  refused(folder_ / "nan", "not finite");
}

}  // namespace
}  // namespace octet::test::adapters_test
