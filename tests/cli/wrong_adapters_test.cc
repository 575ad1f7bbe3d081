// Invalid adapters: each has its own message, on one rank and for some rows on two. One rank prints it, and
// no file is written.
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>

#include "cli/adapter_task.h"
#include "cli/turns.h"
#include "cli/weights.h"
#include "octet/base/json.h"

namespace octet::test::wrong_adapters_test {
namespace {

namespace fs = std::filesystem;

/// The tensors of an adapter's file, for modification.
using Tensors = std::map<std::string, std::pair<std::vector<std::int64_t>, std::vector<float>>>;

const std::string kModule = "base_model.model.model.layers.1.mlp.up_proj";

class WrongAdapters : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_ = std::make_unique<TemporaryFolder>("wrong_adapters");
    expect_success(
        trainer(lora(*shared_ / "good", "max_steps=2 save_strategy=no lora_target=q_proj,up_proj")));
  }
  static void TearDownTestSuite() { shared_.reset(); }
  static const TemporaryFolder& folder() { return *shared_; }

  static std::string copy(const std::string& name) {
    const std::string path = folder() / ("adapter_" + name);
    fs::create_directory(path);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      fs::copy_file(folder() / ("good/" + std::string(file)), path + "/" + file);
    return path;
  }
  static std::string described(const std::string& name, const std::function<void(Json&)>& change) {
    const std::string path = copy(name);
    Json config = read_json(path + "/adapter_config.json");
    change(config);
    spill(path + "/adapter_config.json", config.dump());
    return path;
  }
  static std::string weighed(const std::string& name, const std::function<void(Tensors&)>& change) {
    const std::string path = copy(name), file = path + "/adapter_model.safetensors";
    Tensors tensors;
    const weights::SafetensorsFile before(file);
    for (const auto& tensor : before.tensors())
      tensors[tensor.name] = {tensor.shape, floats_of(file, tensor.name)};
    change(tensors);
    std::vector<TensorSlice> slices;
    for (auto& [tensor, value] : tensors) {
      slices.push_back({tensor, DType::f32, value.first, 0, static_cast<std::int64_t>(value.second.size()),
                        value.second.data()});
    }
    weights::write_safetensors(file, slices);
    return path;
  }

  /// Expects a run with these keys to be refused with its own message.
  static void expect_refused(const std::string& keys, const std::string& says,
                             const std::string& output = "never") {
    for (const int np : ranks_in_turn(1)) {
      const Outcome run = on_ranks(np, lora(folder() / output, keys));
      EXPECT_EQ(run.code, 64) << keys << " on " << np << ": " << run.both();
      EXPECT_EQ(errors_in(run), 1) << keys << " on " << np << ": " << run.err;
      EXPECT_NE(run.err.find(says), std::string::npos)
          << says << " of " << keys << " on " << np << ": " << run.err;
      EXPECT_NE(run.err.find("where:"), std::string::npos) << keys << ": " << run.err;
      for (const char* file : {"never/adapter_model.safetensors", "never/checkpoint-3"})
        EXPECT_FALSE(fs::exists(folder() / file)) << keys;
    }
  }
  static void expect_adapter_refused(const std::string& adapter, const std::string& says) {
    expect_refused("adapter_name_or_path=" + adapter, says);
  }

 private:
  static std::unique_ptr<TemporaryFolder> shared_;
};

std::unique_ptr<TemporaryFolder> WrongAdapters::shared_;

TEST_F(WrongAdapters, KeysThatCannotBe) {
  const std::pair<std::string, std::string> cases[] = {
      {"lora_rank=0", "lora_rank"},
      {"lora_rank=33", "smaller side"},
      {"lora_alpha=nan", "lora_alpha"},
      {"lora_dropout=1", "lora_dropout"},
      {"lora_dropout=-0.1", "lora_dropout"},
      {"lora_target=q_prj", "did you mean 'q_proj'"},
      {"lora_target=q_proj,up_prooj", "did you mean 'up_proj'"},
      {"lora_target=lm_head", "not a linear module"},
      {"lora_target=embed_tokens", "not a linear module"},
      {"lora_target=input_layernorm", "not a linear module"},
      {"lora_target=.*layers.7.*_proj", "matches no module"},
      {"lora_target=.*q_proj[", "q_proj["},
      {"additional_target=norm", "cannot be trained as a whole"},
      {"create_new_adapter=true", "adapter_name_or_path"},
      {"adapter_name_or_path=,", "empty name"},
      {"adapter_name_or_path=" + (folder() / "nowhere"), "the folder has no adapter"},
      {"adapter_name_or_path=" + adapter_base(), "the folder has no adapter"},
      {"adapter_name_or_path=" + (folder() / "good") + "," + (folder() / "nowhere"),
       "the folder has no adapter"},
      {"adapter_name_or_path=" + (folder() / "nowhere") + "," + (folder() / "good"),
       "the folder has no adapter"},
  };
  for (const auto& [keys, says] : cases) expect_refused(keys, says);
}

TEST_F(WrongAdapters, DescriptionsThatCannotBe) {
  const auto with = [](const std::string& key, const Json& value) {
    return described(key, [&](Json& config) { config[key] = value; });
  };
  expect_adapter_refused(with("peft_type", "IA3"), "another method");
  expect_adapter_refused(with("bias", "all"), "bias: none");
  expect_adapter_refused(with("lora_bias", true), "lora_bias");
  expect_adapter_refused(with("layer_replication", Json::array({Json::array({0, 1})})), "layer_replication");
  expect_adapter_refused(with("use_qalora", true), "QA-LoRA");
  expect_adapter_refused(with("r", 8), "does not fit the model");
  expect_adapter_refused(with("lora_alpha", "nan"), "lora_alpha");
  expect_adapter_refused(with("target_modules", Json::array({"q_proj", "up_proj", "k_proj"})),
                         "lacks a tensor");
  expect_adapter_refused(with("modules_to_save", Json::array({"embed_tokens"})),
                         "one of two tables that the model ties");
  expect_adapter_refused(described("fewer", [](Json& c) { c["target_modules"] = Json::array({"q_proj"}); }),
                         "has no place in the model");
  const std::string no_json = copy("no_json");
  spill(no_json + "/adapter_config.json", "{\"peft_type\": \"LORA\",");
  expect_adapter_refused(no_json, "adapter_config.json");
  spill(no_json + "/adapter_config.json", "[3]");
  expect_adapter_refused(no_json, "is not an object");
}

TEST_F(WrongAdapters, WeightsThatCannotBe) {
  const std::string a = kModule + ".lora_A.weight";
  expect_adapter_refused(weighed("missing", [&](Tensors& t) { t.erase(a); }), "lacks a tensor");
  expect_adapter_refused(
      weighed("extra",
              [&](Tensors& t) { t["base_model.model.model.layers.7.mlp.up_proj.lora_A.weight"] = t[a]; }),
      "has no place in the model");
  expect_adapter_refused(weighed("head", [&](Tensors& t) { t["base_model.model.lm_head.weight"] = t[a]; }),
                         "has no place in the model");
  expect_adapter_refused(weighed("shape", [&](Tensors& t) { std::swap(t[a].first[0], t[a].first[1]); }),
                         "does not fit the model");
  for (const float bad : {NAN, INFINITY}) {
    const std::string name = std::isnan(bad) ? "nan" : "infinite";
    const std::string path = weighed(name, [&](Tensors& t) { t[a].second[5] = bad; });
    expect_adapter_refused(path, "not finite");
    expect_refused("zero_stage=3 create_new_adapter=true adapter_name_or_path=" + path, "not finite");
  }
  expect_adapter_refused(OCTET_SOURCE_DIR "/tests/golden/adapters/llama3-lora/adapter",
                         "does not fit the model");
  const std::string cut = copy("cut");
  fs::resize_file(cut + "/adapter_model.safetensors", 2000);
  expect_adapter_refused(cut, "adapter_model.safetensors");
  const std::string header = copy("header");
  fs::resize_file(header + "/adapter_model.safetensors", 5);
  expect_adapter_refused(header, "adapter_model.safetensors");
  const std::string none = copy("none");
  fs::rename(none + "/adapter_model.safetensors", none + "/adapter_model.bin");
  expect_adapter_refused(none, "adapter_model.bin");
}

// Another program's adapter trained a tied table as two tables.
TEST_F(WrongAdapters, TwoTablesOfATiedModel) {
  const std::string golden = OCTET_SOURCE_DIR "/tests/golden/adapters/llama3-tied-save/adapter";
  const std::string path = folder() / "two_tables";
  fs::copy(golden, path, fs::copy_options::recursive);
  const std::string file = path + "/adapter_model.safetensors";
  fs::permissions(file, fs::perms::owner_write, fs::perm_options::add);
  std::string bytes = slurp(file);
  const auto head = weights::SafetensorsFile(file).at("base_model.model.lm_head.weight").offset;
  bytes[static_cast<std::size_t>(head)] ^= 1;
  spill(file, bytes);
  const std::string base = OCTET_SOURCE_DIR "/tests/golden/adapters/base/llama3-tied";
  const Outcome run =
      trainer("probe " + base + " --batch " + probe_batch(folder()) + " --out " +
              (folder() / "out.safetensors") + " finetuning_type=lora adapter_name_or_path=" + path);
  EXPECT_EQ(run.code, 64);
  EXPECT_NE(run.err.find("the model ties them"), std::string::npos) << run.err;
}

TEST_F(WrongAdapters, ResumedRunsOfOthers) {
  expect_success(trainer(lora(folder() / "run", "max_steps=3")));
  fs::remove(folder() / "run/adapter_model.safetensors");
  expect_refused("lora_rank=8 lora_alpha=8", "r: 4", "run");
  expect_refused("lora_alpha=3", "lora_alpha: 8", "run");
  expect_refused("use_rslora=true", "use_rslora", "run");
  expect_refused("lora_target=q_proj", "target_modules", "run");
  expect_refused("additional_target=lm_head", "modules_to_save", "run");
  expect_refused("create_new_adapter=true adapter_name_or_path=" + (folder() / "good"),
                 "the adapters that are added to the base differ", "run");
  expect_refused("finetuning_type=full", "trained adapters", "run");
  fs::copy(adapter_base(), folder() / "other", fs::copy_options::recursive);
  const std::string weights = folder() / "other/model.safetensors";
  std::string bytes = slurp(weights);
  bytes[bytes.size() - 5] = static_cast<char>(bytes[bytes.size() - 5] ^ 1);
  spill(weights, bytes);
  expect_refused("model_name_or_path=" + (folder() / "other"), "weights of the base model differ", "run");
}

TEST_F(WrongAdapters, MergesIntoABaseThatIsNotFinite) {
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    const std::string base = folder() / "odd_base";
    fs::copy(adapter_base(), base, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    Weights weights = read_weights(base);
    weights.at("model.norm.weight").values.back() = value;
    write_weights(base, weights);
    const Outcome run = trainer("export " + (folder() / "good") + " " + (folder() / "odd_merged") +
                                " --merge --model " + base);
    EXPECT_EQ(run.code, 64) << run.err;
    EXPECT_NE(run.err.find(base + ", tensor 'model.norm.weight'"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("use weights of the base model without such values"), std::string::npos);
    EXPECT_FALSE(fs::exists(folder() / "odd_merged/model.safetensors")) << value;
  }
}

TEST_F(WrongAdapters, MergesWithoutABase) {
  const std::string lost = described("lost", [](Json& c) { c["base_model_name_or_path"] = "/nowhere/base"; });
  for (const std::string& command : {"export " + lost + " " + (folder() / "merged") + " --merge",
                                     "generate " + lost + " --template chatml hello"}) {
    const Outcome run = trainer(command);
    EXPECT_EQ(run.code, 64) << command;
    EXPECT_NE(run.err.find("base model of the adapter does not exist"), std::string::npos) << run.err;
    EXPECT_NE(run.err.find("/nowhere/base"), std::string::npos) << run.err;
  }
  const Outcome two = on_ranks(2, "generate " + lost + " --template chatml hello");
  EXPECT_EQ(two.code, 64);
  EXPECT_EQ(errors_in(two), 1) << two.err;
  EXPECT_FALSE(fs::exists(folder() / "merged"));
  const Outcome plain = trainer("export " + (folder() / "good") + " " + (folder() / "merged"));
  EXPECT_NE(plain.err.find("--merge"), std::string::npos) << plain.err;
}

}  // namespace
}  // namespace octet::test::wrong_adapters_test
