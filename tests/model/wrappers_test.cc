// Text models of vision-language models: config.json as it is published and as programs write it again, and
// names of tensors in files.
#include <gtest/gtest.h>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"

namespace octet::model::wrappers_test {
namespace {

// Shapes and keys of published files. Sizes of image parts are shortened.
constexpr const char* kQwen3Vl =
    R"({"architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655,
  "model_type": "qwen3_vl", "text_config": {"attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 151643,
    "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 4096,
    "initializer_range": 0.02, "intermediate_size": 12288, "max_position_embeddings": 262144,
    "model_type": "qwen3_vl_text", "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-06, "rope_scaling": {"mrope_interleaved": true, "mrope_section": [24, 20, 20],
    "rope_type": "default"}, "rope_theta": 5000000, "use_cache": true, "vocab_size": 151936},
  "tie_word_embeddings": false, "transformers_version": "4.57.0.dev0", "video_token_id": 151656,
  "vision_config": {"depth": 27, "model_type": "qwen3_vl"}, "vision_end_token_id": 151653,
  "vision_start_token_id": 151652})";
constexpr const char* kQwen25Vl =
    R"({"architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0,
  "bos_token_id": 151643, "eos_token_id": 151645, "vision_start_token_id": 151652, "vision_end_token_id": 151653,
  "vision_token_id": 151654, "image_token_id": 151655, "video_token_id": 151656, "hidden_act": "silu",
  "hidden_size": 2048, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 128000,
  "max_window_layers": 70, "model_type": "qwen2_5_vl", "num_attention_heads": 16, "num_hidden_layers": 36,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "transformers_version": "4.41.2", "use_cache": true,
  "use_sliding_window": false, "vision_config": {"depth": 32, "hidden_size": 1280, "tokens_per_second": 2},
  "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vocab_size": 151936})";
constexpr const char* kMistral3 =
    R"({"architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
  "model_type": "mistral3", "multimodal_projector_bias": false, "projector_hidden_act": "gelu",
  "spatial_merge_size": 2, "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
    "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": null, "use_cache": true,
    "vocab_size": 131072}, "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
  "vision_config": {"model_type": "pixtral"}, "vision_feature_layer": -1})";

Json parsed(const char* text) {
  return parse_json(text, "test");
}

std::string refusal(const Json& config) {
  try {
    read_architecture(config, "somewhere/config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "";
}

void expect_refused(const Json& config, const std::string& says) {
  EXPECT_NE(refusal(config).find(says), std::string::npos) << says << "\n" << refusal(config);
}

TEST(Wrappers, PublishedConfigsAreTheirTextModels) {
  const Architecture qwen3 = read_architecture(parsed(kQwen3Vl), "test");
  EXPECT_TRUE(qwen3.multimodal && qwen3.qk_norm && !qwen3.tied && !qwen3.qkv_bias);
  EXPECT_EQ(qwen3.layers, 36);
  EXPECT_EQ(qwen3.ropes, std::vector<Rope>{{.theta = 5e6}});
  const Architecture qwen25 = read_architecture(parsed(kQwen25Vl), "test");
  EXPECT_TRUE(qwen25.multimodal && qwen25.qkv_bias && qwen25.tied && !qwen25.qk_norm);
  EXPECT_EQ(qwen25.heads.head_dim, 128);
  EXPECT_EQ(qwen25.block(35).window, 0);
  EXPECT_EQ(qwen25.ropes, std::vector<Rope>{{.theta = 1e6}});
  const Architecture mistral = read_architecture(parsed(kMistral3), "test");
  EXPECT_TRUE(mistral.multimodal && !mistral.tied);
  EXPECT_EQ(mistral.heads.head_dim, 128);
  EXPECT_EQ(mistral.block(0).window, 0);
}

// transformers 4.52 and later write the keys of the text model twice. text_config counts.
TEST(Wrappers, AConfigWithTheTextModelTwiceIsItsTextConfig) {
  const Architecture expected = read_architecture(parsed(kQwen25Vl), "test");
  Json config = parsed(kQwen25Vl), text = config;
  for (const char* key : {"vision_config", "architectures"}) text.erase(key);
  text["model_type"] = "qwen2_5_vl_text";
  text["image_token_id"] = nullptr;
  text["rope_scaling"]["rope_type"] = "default";
  text["layer_types"] = Json::array();
  for (int i = 0; i < 36; ++i) text["layer_types"].push_back("full_attention");
  config["text_config"] = text;
  config["vocab_size"] = 5;
  EXPECT_EQ(read_architecture(config, "test"), expected);
  config["attention_multiplier"] = 2.0;
  expect_refused(config, "attention_multiplier");
  config = parsed(kQwen25Vl);
  config["model_type"] = "qwen2_vl";
  config["architectures"] = {"Qwen2VLForConditionalGeneration"};
  EXPECT_EQ(read_architecture(config, "test").layers, expected.layers);
}

TEST(Wrappers, Mistral3TakesTheTextModelOfAnyFamily) {
  Json config = parsed(kMistral3);
  config["text_config"]["model_type"] = "llama";
  config["text_config"]["rms_norm_eps"] = 1e-6;
  EXPECT_EQ(read_architecture(config, "test").model_type, "llama");
  config["text_config"]["model_type"] = "gemma3";
  expect_refused(config, "the text model of this model is not known");
  config["text_config"]["model_type"] = "mamba2";
  expect_refused(config, "this model needs a part that Octet does not have: Mamba-2 blocks");
  config["text_config"]["model_type"] = "mamba3";
  expect_refused(config, "\"mamba3\"");
}

TEST(Wrappers, WrongSectionsAndPartsAreRefused) {
  for (const Json& sections :
       {Json({24, 20, 21}), Json({24, 40}), Json({64, -1, 1}), Json("24"), Json({64, 0.0, 0})}) {
    Json config = parsed(kQwen3Vl);
    config["text_config"]["rope_scaling"]["mrope_section"] = sections;
    expect_refused(config, "'mrope_section' cannot be used");
  }
  Json config = parsed(kQwen3Vl);
  config["text_config"]["rope_scaling"]["mrope_interleaved"] = 3;
  expect_refused(config, "mrope_interleaved");
  config = parsed(kQwen3Vl);
  config["text_config"]["rope_scaling"]["rope_type"] = "proportional";
  expect_refused(config, "proportional");
  config = parsed(kQwen3Vl);
  config.erase("text_config");
  expect_refused(config, "'text_config' is missing");
  config = parsed(kQwen3Vl);
  config["deepstack_scale"] = 2.0;
  expect_refused(config, "deepstack_scale");
  config = parsed(kQwen3Vl);
  config["model_type"] = "mllama";
  expect_refused(config, "this model needs a part that Octet does not have: cross attention");
  config = parsed(kMistral3);
  config["text_config"]["rope_scaling"] = {{"type", "default"}, {"mrope_section", {24, 20, 20}}};
  expect_refused(config, "mrope_section");
}

TEST(Wrappers, TensorsHaveTheNamesOfTheFiles) {
  const auto names = [](const char* config, const std::string& there, const std::string& head = "") {
    Architecture a = read_architecture(parsed(config), "test");
    name_tensors(
        a, [&](const std::string& name) { return name == there + "embed_tokens.weight" || name == head; });
    return a.tensor_prefix + " " + a.head_name + (a.multimodal ? "" : " alone");
  };
  const std::string newer = "model.language_model. lm_head.weight";
  const std::string older = "language_model.model. language_model.lm_head.weight";
  for (const char* config : {kQwen3Vl, kQwen25Vl, kMistral3}) {
    EXPECT_EQ(names(config, "model.language_model."), newer);
    EXPECT_EQ(names(config, "language_model.model."), older);
    EXPECT_EQ(names(config, "language_model.model.", "lm_head.weight"),
              "language_model.model. lm_head.weight");
  }
  EXPECT_EQ(names(kQwen25Vl, "model."), "model. lm_head.weight");
  EXPECT_EQ(names(kMistral3, "model."), "model. lm_head.weight alone");
  EXPECT_EQ(names(kQwen25Vl, "none"), newer);
  EXPECT_EQ(names(kMistral3, "none"), older);

  Architecture a = read_architecture(parsed(kQwen25Vl), "test");
  name_tensors(a, [](const std::string& name) { return name == "model.embed_tokens.weight"; });
  EXPECT_EQ(text_tensors(a), (std::vector<std::string>{"model.", "lm_head.weight"}));
  EXPECT_EQ(named_as_modules(a).tensor_prefix, "model.language_model.");
  a.multimodal = false;
  EXPECT_TRUE(text_tensors(a).empty());
  EXPECT_EQ(named_as_modules(a).tensor_prefix, "model.");
}

}  // namespace
}  // namespace octet::model::wrappers_test
