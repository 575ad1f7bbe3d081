// Model folders: shards, formats, names of multimodal checkpoints, and errors, tested through the program.
#include <gtest/gtest.h>

#include <cmath>

#include "cli/task.h"
#include "cli/weights.h"
#include "octet/base/json.h"

namespace octet::test::model_folder_test {
namespace {

namespace fs = std::filesystem;

class ModelFolder : public testing::Test {
 protected:
  ModelFolder() : folder_("model_folder") { write_batch(batch(), 24, 192); }

  std::string model() const { return folder_ / "model"; }
  std::string batch() const { return folder_ / "batch.safetensors"; }
  std::string out() const { return folder_ / "out.safetensors"; }

  Outcome probe(const std::string& options = "", int np = 0) const {
    fs::remove(out());
    return trainer("probe " + model() + " --batch " + batch() + " --out " + out() + " device=cpu " + options,
                   np);
  }
  std::vector<float> logits(const std::string& options = "", int np = 0) const {
    const Outcome run = probe(options, np);
    EXPECT_EQ(run.code, 0) << run.both();
    return run.code == 0 ? read_floats(weights::SafetensorsFile(out()), "logits") : std::vector<float>{};
  }
  static double distance(const std::vector<float>& a, const std::vector<float>& b) {
    EXPECT_EQ(a.size(), b.size());
    double difference = 0, size = 0;
    for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
      size += double{b[i]} * b[i];
    }
    return std::sqrt(difference / std::max(size, 1e-300));
  }
  // Expects one message with all these pieces, on one rank and on two.
  void expect_refusal(const std::vector<std::string>& pieces) const {
    for (const int np : {0, 2}) {
      const Outcome run = probe("zero_stage=" + std::to_string(np), np);
      EXPECT_NE(run.code, 0);
      EXPECT_EQ(errors_in(run), 1) << run.both();
      EXPECT_EQ(run.err.find("internal error"), std::string::npos) << run.err;
      for (const std::string& piece : pieces)
        EXPECT_NE(run.err.find(piece), std::string::npos) << piece << "\n" << run.err;
    }
  }
  // Rounds every weight like a file in that format.
  static Weights rounded(Weights weights, DType dtype) {
    for (auto& [name, w] : weights) {
      for (float& v : w.values) v = dtype == DType::bf16 ? from_bf16(to_bf16(v)) : from_f16(to_f16(v));
    }
    return weights;
  }

  TemporaryFolder folder_;
};

TEST_F(ModelFolder, ShardsAndFormatsOfWeightsLoadToTheSameBits) {
  for (const char* name : {"llama-mha-bias", "qwen2"}) {
    fs::remove_all(model());
    copy_golden_model(name, model());
    Weights weights = read_weights(model());
    // The stored weights are bf16. These values are not representable in either format.
    for (auto& [tensor, w] : weights) {
      for (float& v : w.values) v *= 1.0f + 0x1.8p-12f;
    }
    write_weights(model(), weights);
    const std::vector<float> whole = logits();
    write_weights(model(), weights, DType::f32, 40000);
    EXPECT_TRUE(path_exists(model() + "/model.safetensors.index.json"));
    EXPECT_EQ(logits(), whole) << "shards are the same weights";
    EXPECT_LT(distance(logits("zero_stage=3", 2), whole), 1e-5) << "products of other shapes";
    for (const DType dtype : {DType::bf16, DType::f16}) {
      write_weights(model(), rounded(weights, dtype));
      const std::vector<float> expected = logits();
      write_weights(model(), weights, dtype, 30000);
      EXPECT_EQ(logits(), expected) << name_of(dtype);
      // Rounding weights by 2^-9 (2^-12) moves the logits by about as much.
      EXPECT_LT(distance(expected, whole), dtype == DType::bf16 ? 2e-2 : 3e-3);
      EXPECT_GT(distance(expected, whole), 1e-5) << "the weights were rounded";
    }
  }
}

TEST_F(ModelFolder, AShardThatIsMissingOrSwappedOrOfOtherWeightsIsNamed) {
  copy_golden_model("qwen2", model());
  const std::string first = model() + "/model-00001-of-00004.safetensors";
  const std::string second = model() + "/model-00002-of-00004.safetensors";
  fs::rename(second, folder_ / "kept");
  expect_refusal({"model-00002-of-00004.safetensors"});
  fs::copy_file(first, second);
  expect_refusal({"is in two shards", "model-00001-of-00004.safetensors"});
  fs::remove(second);
  fs::rename(first, second);
  fs::rename(folder_ / "kept", first);
  expect_refusal({"is not in the shard that the index names", "fetch or write the weights again"});
}

TEST_F(ModelFolder, ATensorOfAnotherShapeOrDtypeOrNoneAtAllIsNamed) {
  copy_golden_model("llama", model());
  const Weights weights = read_weights(model());
  const std::string norm = "model.layers.1.input_layernorm.weight";

  Weights wrong = weights;
  wrong[norm].shape = {65};
  wrong[norm].values.resize(65);
  write_weights(model(), wrong);
  expect_refusal({"'" + norm + "' has the wrong shape", "[64]", "[65]", "config.json"});

  wrong = weights;
  wrong.erase(norm);
  write_weights(model(), wrong);
  expect_refusal({"'" + norm + "' is missing", "the nearest is"});

  write_weights(model(), wrong, DType::f32, 1 << 30);
  // The same tensor as whole numbers, in a second shard.
  write_integer_weight(model() + "/model-00002-of-00002.safetensors", norm, {64});
  fs::rename(model() + "/model.safetensors", model() + "/model-00001-of-00002.safetensors");
  Json index{{"metadata", {{"total_size", 1}}}, {"weight_map", Json::object()}};
  for (const auto& [name, w] : wrong) index["weight_map"][name] = "model-00001-of-00002.safetensors";
  index["weight_map"][norm] = "model-00002-of-00002.safetensors";
  spill(model() + "/model.safetensors.index.json", index.dump());
  expect_refusal(
      {"dtype of a tensor cannot be used here", norm, "I64", "quantised to integers to a float dtype"});
}

TEST_F(ModelFolder, AWeightThatTheConfigKnowsNothingOfIsNotLeftOut) {
  copy_golden_model("llama", model());
  Weights weights = read_weights(model());
  const std::vector<float> plain = logits();
  weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{8}, std::vector<float>(8, 1.0f)};
  write_weights(model(), weights);
  EXPECT_EQ(logits(), plain) << "tables that old files hold are computed";
  weights["model.layers.0.self_attn.q_proj.bias"] = {{64}, std::vector<float>(64, 1.0f)};
  write_weights(model(), weights);
  expect_refusal({"'model.layers.0.self_attn.q_proj.bias' has no place", "biases"});
  // With one layer less in the config, the weights of the last one would be left out.
  weights.erase("model.layers.0.self_attn.q_proj.bias");
  write_weights(model(), weights);
  Json config = read_json(model() + "/config.json");
  config["num_hidden_layers"] = 1;
  spill(model() + "/config.json", config.dump());
  expect_refusal({"'model.layers.1.", "has no place"});
}

// Gemma 3's text model as a part of a multimodal checkpoint.
void make_multimodal(const std::string& model, bool newer) {
  Json text = read_json(model + "/config.json");
  text.erase("architectures");
  text.erase("tie_word_embeddings");
  spill(model + "/config.json", Json{{"architectures", {"Gemma3ForConditionalGeneration"}},
                                     {"model_type", "gemma3"},
                                     {"dtype", "float32"},
                                     {"text_config", text},
                                     {"vision_config", {{"model_type", "siglip_vision_model"}}}}
                                    .dump(2));
  Weights renamed;
  for (auto& [name, w] : read_weights(model)) {
    renamed[(newer ? "model.language_model." : "language_model.model.") + name.substr(6)] = std::move(w);
  }
  renamed[newer ? "model.vision_tower.weight" : "vision_tower.weight"] = {{3, 2}, {1, 2, 3, 4, 5, 6.5f}};
  write_weights(model, renamed);
}

TEST_F(ModelFolder, AMultimodalCheckpointIsTheTextModelUnderEitherName) {
  copy_golden_model("gemma3", model());
  const std::vector<float> plain = logits();
  for (const bool newer : {false, true}) {
    fs::remove_all(model());
    copy_golden_model("gemma3", model());
    make_multimodal(model(), newer);
    EXPECT_LT(distance(logits("zero_stage=3", 2), plain), 1e-5);
    EXPECT_EQ(logits(), plain);
    const std::string prefix = newer ? "grad.model.language_model." : "grad.language_model.model.";
    const weights::SafetensorsFile result(out());
    EXPECT_NE(result.find(prefix + "layers.0.self_attn.q_norm.weight"), nullptr);
  }
}

}  // namespace
}  // namespace octet::test::model_folder_test
