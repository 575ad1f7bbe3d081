#include "octet/model/architecture.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <map>
#include <set>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/model/shapes.h"

namespace octet::model::architecture_test {
namespace {

Json llama() {
  return parse_json(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128256,
    "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "eos_token_id": [128001, 128008],
    "torch_dtype": "bfloat16", "use_cache": true, "hidden_act": "silu", "attention_bias": false,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}})",
                    "test");
}

std::string refusal(const Json& config) {
  try {
    read_architecture(config, "somewhere/config.json");
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ExitCode::usage);
    EXPECT_NE(std::string(e.what()).find("somewhere/config.json"), std::string::npos) << e.what();
    return e.what();
  }
  return "";
}

std::string refusal_with(const std::string& key, const Json& value) {
  Json config = llama();
  config[key] = value;
  return refusal(config);
}

TEST(Architecture, ReadsAPublishedConfig) {
  const Architecture a = read_architecture(llama(), "test");
  EXPECT_EQ(a.layers, 32);
  EXPECT_EQ(a.heads.head_dim, 128);
  EXPECT_EQ(a.heads.kv_heads, 8);
  EXPECT_EQ(a.ropes.at(0).kind, RopeKind::llama3);
  EXPECT_EQ(a.ropes.at(0).theta, 500000.0);
  EXPECT_FALSE(a.tied);
  EXPECT_FALSE(a.qkv_bias);
}

TEST(Architecture, MissingHeadsAndBiasesTakeTheClassDefaults) {
  Json config = llama();
  config.erase("num_key_value_heads");
  config.erase("rope_scaling");
  config.erase("rope_theta");
  const Architecture a = read_architecture(config, "test");
  EXPECT_EQ(a.heads.kv_heads, 32);
  EXPECT_EQ(a.ropes.at(0).kind, RopeKind::standard);
  EXPECT_EQ(a.ropes.at(0).theta, 10000.0);
}

TEST(Architecture, HostileSizesAreRefusedByName) {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads", "num_key_value_heads", "head_dim"}) {
    for (const Json& bad :
         {Json(0), Json(-1), Json(9223372036854775807), Json(1e300), Json("64"), Json(1.5), Json::array()}) {
      EXPECT_NE(refusal_with(key, bad).find(key), std::string::npos) << key << " " << bad.dump();
    }
  }
  EXPECT_NE(refusal_with("num_key_value_heads", 5).find("num_key_value_heads"), std::string::npos);
  EXPECT_NE(refusal_with("hidden_size", 4097).find("head_dim"), std::string::npos);
  EXPECT_NE(refusal_with("head_dim", 127).find("even"), std::string::npos);
  EXPECT_NE(refusal_with("rms_norm_eps", -1.0).find("rms_norm_eps"), std::string::npos);
  EXPECT_NE(refusal_with("rope_theta", 0.0).find("rope_theta"), std::string::npos);
  EXPECT_NE(refusal_with("rope_theta", 1e300).find("rope_theta"), std::string::npos);
  EXPECT_NE(refusal_with("initializer_range", 0).find("initializer_range"), std::string::npos);
  EXPECT_NE(refusal(Json::array()).find("object"), std::string::npos);
}

// transformers accepts null, or a list of numbers. Other types would end texts at other tokens.
TEST(Architecture, TokensAndDtypesOfAnotherTypeAreRefusedByName) {
  for (const auto& [key, bad] : {std::pair<const char*, Json>{"eos_token_id", "2"},
                                 {"eos_token_id", 2.5},
                                 {"eos_token_id", Json::array({Json::array({2})})},
                                 {"eos_token_id", -1},
                                 {"bos_token_id", "1"},
                                 {"pad_token_id", 0.5},
                                 {"torch_dtype", 16},
                                 {"dtype", true},
                                 {"architectures", "LlamaForCausalLM"}})
    EXPECT_NE(refusal_with(key, bad).find("value of '" + std::string(key) + "'"), std::string::npos) << bad;
  for (const auto& [key, good] : {std::pair<const char*, Json>{"eos_token_id", Json::array({2, 3})},
                                  {"eos_token_id", nullptr},
                                  {"pad_token_id", -1},
                                  {"torch_dtype", nullptr},
                                  {"architectures", nullptr}})
    EXPECT_EQ(refusal_with(key, good), "") << key << " " << good;
}

TEST(Architecture, AMissingSizeIsNamed) {
  for (const char* key :
       {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"}) {
    Json config = llama();
    config.erase(key);
    EXPECT_NE(refusal(config).find(std::string("'") + key + "' is missing"), std::string::npos);
  }
}

TEST(Architecture, AnUnknownFamilyIsRefusedWithTheKnownOnes) {
  const std::string message = refusal_with("model_type", "mamba");
  EXPECT_NE(message.find("mamba"), std::string::npos);
  EXPECT_NE(message.find("llama"), std::string::npos);
  EXPECT_NE(message.find("qwen2"), std::string::npos);
  EXPECT_NE(message.find("gemma3_text"), std::string::npos);
  EXPECT_NE(refusal_with("architectures", Json::array({"LlamaForTokenClassification"}))
                .find("LlamaForTokenClassification"),
            std::string::npos);
}

TEST(Architecture, KeysThatChangeTheMathematicsAreRefusedByName) {
  const auto names = [](const std::string& key, const Json& value) {
    return refusal_with(key, value).find("'" + key + "'") != std::string::npos;
  };
  EXPECT_TRUE(names("residual_multiplier", 0.22));
  EXPECT_TRUE(names("attention_dropout", 0.1));
  EXPECT_TRUE(names("partial_rotary_factor", 0.5));
  EXPECT_TRUE(names("sliding_window", 4096) || refusal_with("sliding_window", 4096) != "");
  EXPECT_TRUE(names("wholly_new_thing", 3));
  EXPECT_TRUE(names("norm_kind", "layer"));
  EXPECT_TRUE(names("quantization_config", Json{{"quant_method", "gptq"}}));
  EXPECT_NE(refusal_with("hidden_act", "relu").find("relu"), std::string::npos);
  EXPECT_NE(
      refusal_with("rope_scaling", Json{{"rope_type", "longrope"}, {"factor", 2.0}}).find("short_factor"),
      std::string::npos);
  EXPECT_NE(refusal_with("rope_scaling", Json{{"rope_type", "axial"}, {"factor", 2.0}}).find("axial"),
            std::string::npos);
  EXPECT_NE(refusal_with("rope_scaling", Json{{"rope_type", "linear"}}).find("factor"), std::string::npos);
  EXPECT_NE(refusal_with("rope_scaling", Json("linear")).find("rope_scaling"), std::string::npos);
}

TEST(Architecture, SaysHowTheWeightsLie) {
  const auto read = [](const Json& quantised) {
    Json config = llama();
    config["quantization_config"] = quantised;
    return read_architecture(config, "config.json").stored;
  };
  using Format = StoredWeights::Format;
  EXPECT_EQ(read(nullptr).format, Format::plain);
  const Json nf4{{"quant_method", "bitsandbytes"},       {"load_in_4bit", true},
                 {"bnb_4bit_quant_type", "nf4"},         {"bnb_4bit_use_double_quant", true},
                 {"bnb_4bit_quant_storage", "bfloat16"}, {"llm_int8_skip_modules", {"lm_head"}}};
  EXPECT_EQ(read(nf4).format, Format::nf4);
  EXPECT_TRUE(read(nf4).double_quantization);
  Json plain = nf4;
  plain["bnb_4bit_use_double_quant"] = false;
  EXPECT_FALSE(read(plain).double_quantization);
  EXPECT_EQ(read({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}}).format, Format::fp8_blocks);

  const auto refused = [](const Json& quantised, const std::string& says) {
    const std::string said = refusal_with("quantization_config", quantised);
    EXPECT_NE(said.find(says), std::string::npos) << said;
    EXPECT_NE(said.find("use the unquantised model"), std::string::npos) << "what to do instead: " << said;
  };
  Json fp4 = nf4, eight = nf4;
  fp4["bnb_4bit_quant_type"] = "fp4";
  eight["load_in_8bit"] = true;
  refused(fp4, "bnb_4bit_quant_type: nf4");
  refused(eight, "8 bits");
  refused({{"quant_method", "fp8"}, {"weight_block_size", {1, 128}}}, "weight_block_size: [128, 128]");
  refused({{"quant_method", "fp8"}}, "weight_block_size: [128, 128]");
  refused({{"quant_method", "gptq"}, {"bits", 4}}, "GPTQ");
  refused({{"quant_method", "awq"}}, "AWQ");
  refused({{"quant_method", "mxfp4"}}, "MXFP4 in this family");
  refused({{"quant_method", "nothing_known"}}, "is not known");
  refused({{"bits", 4}}, "no quant_method");
}

TEST(Architecture, KeysThatChangeNothingPass) {
  EXPECT_EQ(refusal_with("wholly_new_thing", nullptr), "");
  EXPECT_EQ(refusal_with("wholly_new_thing", false), "");
  EXPECT_EQ(refusal_with("attention_dropout", 0.0), "");
  EXPECT_EQ(refusal_with("transformers_version", "4.43.0"), "");
  EXPECT_EQ(refusal_with("partial_rotary_factor", 1.0), "");
}

// Configurations of published models have keys for other programs.
TEST(Architecture, KeysThatTransformersDoesNotReadPass) {
  const std::pair<const char*, Json> keys[] = {
      {"is_llama_config", true},
      {"rope_interleaved", true},
      {"transformers.js_config", {{"kv_cache_dtype", {{"fp16", "float16"}}}}},
      {"_commit_hash", "0123abcd"},
      {"dual_chunk_attention_config", {{"chunk_size", 262144}}},
      {"max_sequence_length", 2048},
      {"neuron", {{"compiler_version", "2.12"}}},
      {"num_labels", 2}};
  for (const auto& [key, value] : keys) EXPECT_EQ(refusal_with(key, value), "") << key;
  Json rope{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1024}};
  Json config = llama();
  config["rope_scaling"] = rope;
  const Architecture plain = read_architecture(config, "test");
  for (const char* key : {"attn_factor", "finetuned", "extrapolation_factor", "low_freq_factor"}) {
    config["rope_scaling"] = rope;
    config["rope_scaling"][key] = 2.0;
    EXPECT_EQ(read_architecture(config, "test"), plain) << key;
  }
  config["rope_scaling"] = rope;
  config["rope_scaling"]["attention_factor"] = 2.0;
  EXPECT_FALSE(read_architecture(config, "test") == plain);
  config["rope_scaling"] = rope;
  config["rope_scaling"]["alpha"] = 2.0;
  EXPECT_NE(refusal(config).find("'alpha'"), std::string::npos);
}

TEST(Architecture, SpellingsThatContradictAreRefused) {
  Json config = llama();
  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 10000.0}};
  EXPECT_NE(refusal(config).find("contradict"), std::string::npos);
  config.erase("rope_scaling");
  EXPECT_NE(refusal(config).find("rope_theta"), std::string::npos);
  config.erase("rope_theta");
  EXPECT_EQ(refusal(config), "");
}

TEST(Architecture, WindowsOfMistralAndQwen2) {
  Json config = llama();
  config.erase("rope_scaling");
  config["architectures"] = Json::array({"MistralForCausalLM"});
  config["model_type"] = "mistral";
  EXPECT_EQ(read_architecture(config, "test").blocks.at(7).window, 4096);
  config["sliding_window"] = nullptr;
  EXPECT_EQ(read_architecture(config, "test").blocks.at(7).window, 0);
  config["architectures"] = Json::array({"Qwen2ForCausalLM"});
  config["model_type"] = "qwen2";
  config["sliding_window"] = 1024;
  config["max_window_layers"] = 30;
  EXPECT_TRUE(read_architecture(config, "test").qkv_bias);
  EXPECT_EQ(read_architecture(config, "test").blocks.at(31).window, 0);
  config["use_sliding_window"] = true;
  EXPECT_EQ(read_architecture(config, "test").blocks.at(29).window, 0);
  EXPECT_EQ(read_architecture(config, "test").blocks.at(30).window, 1024);
}

Json with_rope(const std::string& model_type, const std::string& class_name, const Json& keys) {
  Json config = llama();
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["model_type"] = model_type;
  config["architectures"] = Json::array({class_name});
  for (const auto& [key, value] : keys.items()) config[key] = value;
  return config;
}

TEST(Architecture, RotaryEmbeddingsMeanTheSameInBothSpellings) {
  struct Spelling {
    Json old_keys, new_keys;
  };
  const Json yarn{{"factor", 4.0},     {"original_max_position_embeddings", 1024},
                  {"beta_fast", 16.0}, {"beta_slow", 2.0},
                  {"mscale", 1.0},     {"mscale_all_dim", 0.5},
                  {"truncate", false}};
  Json old_yarn = yarn, new_yarn = yarn;
  old_yarn["type"] = "yarn";
  new_yarn["rope_type"] = "yarn";
  new_yarn["rope_theta"] = 1e6;
  const Spelling spellings[] = {
      {{{"rope_theta", 5e5}}, {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}}},
      {{{"rope_theta", 5e5}, {"rope_scaling", {{"type", "linear"}, {"factor", 2.5}}}},
       {{"rope_parameters", {{"rope_type", "linear"}, {"rope_theta", 5e5}, {"factor", 2.5}}}}},
      {{{"rope_theta", 1e6}, {"rope_scaling", old_yarn}}, {{"rope_parameters", new_yarn}}}};
  for (const Spelling& s : spellings) {
    const Architecture older = read_architecture(with_rope("qwen3", "Qwen3ForCausalLM", s.old_keys), "test");
    const Architecture newer = read_architecture(with_rope("qwen3", "Qwen3ForCausalLM", s.new_keys), "test");
    EXPECT_EQ(older, newer) << s.new_keys.dump();
  }
  const Rope rope =
      read_architecture(with_rope("qwen3", "Qwen3ForCausalLM", spellings[2].new_keys), "test").ropes.at(0);
  EXPECT_EQ(rope.kind, RopeKind::yarn);
  EXPECT_EQ(rope.theta, 1e6);
  EXPECT_EQ(rope.factor, 4.0);
  EXPECT_EQ(rope.beta_fast, 16.0);
  EXPECT_EQ(rope.beta_slow, 2.0);
  EXPECT_EQ(rope.original_max_positions, 1024);
  EXPECT_FALSE(rope.truncate);
  EXPECT_NEAR(rope.attention_factor, (0.1 * std::log(4.0) + 1) / (0.05 * std::log(4.0) + 1), 1e-12);
}

TEST(Architecture, YarnWhoseNumbersMakeNoSenseIsRefusedByName) {
  const auto refused = [](const Json& scaling) {
    return refusal(with_rope("llama", "LlamaForCausalLM", {{"rope_scaling", scaling}}));
  };
  EXPECT_NE(refused({{"rope_type", "yarn"}}).find("factor"), std::string::npos);
  EXPECT_NE(refused({{"rope_type", "yarn"}, {"factor", -1.0}}).find("factor"), std::string::npos);
  EXPECT_NE(refused({{"rope_type", "yarn"}, {"factor", 2.0}, {"beta_fast", 1.0}, {"beta_slow", 2.0}})
                .find("beta_fast"),
            std::string::npos);
  EXPECT_NE(refused({{"rope_type", "yarn"}, {"factor", 2.0}, {"long_factor", {1.0}}}).find("long_factor"),
            std::string::npos);
  EXPECT_NE(refused({{"rope_type", "linear"}, {"factor", 2.0}, {"partial_rotary_factor", 0.5}})
                .find("partial_rotary_factor"),
            std::string::npos);
  EXPECT_NE(refused({{"rope_type", "dynamic"}, {"factor", -2.0}}).find("factor"), std::string::npos);
  EXPECT_NE(refused({{"rope_type", "dynamic"}}).find("factor"), std::string::npos);
}

Json gemma3() {
  return parse_json(
      R"({"architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "vocab_size": 1000,
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 12, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "query_pre_attn_scalar": 16, "sliding_window": 512,
    "rope_theta": 1000000.0, "rope_local_base_freq": 5000.0, "sliding_window_pattern": 4,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0}})",
      "test");
}

TEST(Architecture, Gemma3HasTwoRotaryBasesAndAPatternOfWindowsInBothSpellings) {
  const Architecture older = read_architecture(gemma3(), "test");
  Json config = gemma3();
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"})
    config.erase(key);
  config["layer_types"] = Json::array();
  for (int i = 0; i < 12; ++i)
    config["layer_types"].push_back((i + 1) % 4 != 0 ? "sliding_attention" : "full_attention");
  config["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"rope_theta", 1e6}, {"factor", 8.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 5000.0}}}};
  EXPECT_EQ(read_architecture(config, "test"), older);
  ASSERT_EQ(older.ropes.size(), 2u);
  EXPECT_EQ(older.ropes[0].kind, RopeKind::linear);
  EXPECT_EQ(older.ropes[1].theta, 5000.0);
  EXPECT_EQ(older.blocks[2].window, 512);
  EXPECT_EQ(older.blocks[2].rope, 1);
  EXPECT_EQ(older.blocks[3].window, 0);
  EXPECT_EQ(older.blocks[3].rope, 0);
  EXPECT_EQ(older.attention_scale, 0.25);
  EXPECT_EQ(older.embedding_scale, 8.0);
  EXPECT_TRUE(older.qk_norm && older.sublayer_norms && older.one_plus_weight && older.tied);
  EXPECT_EQ(older.padding_id, 0) << "the class's default";
}

TEST(Architecture, AMultimodalGemma3IsItsTextModelWithTheClassesDefaults) {
  Json text = gemma3();
  text.erase("architectures");
  for (const char* key : {"vocab_size", "num_attention_heads", "num_key_value_heads"}) text.erase(key);
  Json config{{"architectures", {"Gemma3ForConditionalGeneration"}},
              {"model_type", "gemma3"},
              {"text_config", text},
              {"vision_config", {{"hidden_size", 1152}}},
              {"mm_tokens_per_image", 256}};
  Architecture a = read_architecture(config, "test");
  EXPECT_EQ(a.vocabulary, 262208);
  EXPECT_EQ(a.heads.q_heads, 8);
  EXPECT_EQ(a.heads.kv_heads, 4);
  EXPECT_TRUE(a.tied && a.multimodal);
  config["tie_word_embeddings"] = false;
  a = read_architecture(config, "test");
  EXPECT_FALSE(a.tied) << "the whole model's word counts";
  const auto names = [&a](const std::string& there) {
    name_tensors(a, [&there](const std::string& name) { return name.starts_with(there); });
    return a.tensor_prefix + " " + a.head_name;
  };
  EXPECT_EQ(names("language_model.model."), "language_model.model. language_model.lm_head.weight");
  EXPECT_EQ(names("model.language_model."), "model.language_model. lm_head.weight");
  config["projector_scale"] = 2.0;
  EXPECT_NE(refusal(config).find("projector_scale"), std::string::npos);
  config.erase("projector_scale");
  config["text_config"]["attention_multiplier"] = 2.0;
  EXPECT_NE(refusal(config).find("attention_multiplier"), std::string::npos);
  config["text_config"] = text;
  config["text_config"]["model_type"] = "llama";
  EXPECT_NE(refusal(config).find("gemma3_text"), std::string::npos);
}

TEST(Architecture, Gemma3DoesNotCapAttentionScores) {
  Json config = gemma3();
  config["attn_logit_softcapping"] = 50.0;
  config["final_logit_softcapping"] = 30.0;
  const Architecture a = read_architecture(config, "test");
  EXPECT_EQ(a.attention_soft_cap, 0.0);
  EXPECT_EQ(a.logit_soft_cap, 30.0);
}

// The text model alone, under the name of the multimodal model.
TEST(Architecture, AGemma3OfItsTextClassIsTheTextModel) {
  const Architecture text = read_architecture(gemma3(), "test");
  Json flat = gemma3();
  flat["model_type"] = "gemma3";
  EXPECT_EQ(read_architecture(flat, "test"), text);
  Json part = gemma3();
  part.erase("architectures");
  const Json nested{
      {"architectures", {"Gemma3ForCausalLM"}}, {"model_type", "gemma3"}, {"text_config", part}};
  Architecture a = read_architecture(nested, "test");
  name_tensors(a, [](const std::string& name) { return name == "model.embed_tokens.weight"; });
  EXPECT_EQ(a, text);
  EXPECT_EQ(a.tensor_prefix, "model.");
  EXPECT_EQ(a.head_name, "lm_head.weight");
  flat["architectures"] = Json::array({"Gemma3ForSequenceClassification"});
  EXPECT_NE(refusal(flat).find("Gemma3ForSequenceClassification"), std::string::npos);
}

TEST(Architecture, Gemma2AlternatesAndCaps) {
  Json config = gemma3();
  config["architectures"] = Json::array({"Gemma2ForCausalLM"});
  config["model_type"] = "gemma2";
  for (const char* key : {"rope_local_base_freq", "sliding_window_pattern", "rope_scaling"})
    config.erase(key);
  const Architecture a = read_architecture(config, "test");
  EXPECT_EQ(a.attention_soft_cap, 50.0);
  EXPECT_EQ(a.logit_soft_cap, 30.0);
  EXPECT_EQ(a.blocks[0].window, 512);
  EXPECT_EQ(a.blocks[1].window, 0);
  EXPECT_FALSE(a.qk_norm);
  config["final_logit_softcapping"] = nullptr;
  EXPECT_EQ(read_architecture(config, "test").logit_soft_cap, 0.0) << "null: none";
}

// transformers' _compute_yarn_parameters in double. Frequencies of dimensions before the ramp are unchanged,
// and later ones are divided by the factor. `truncate` moves the ends of the ramp to whole dimensions.
std::vector<double> yarn_in_double(const Rope& rope, std::int64_t head_dim) {
  const double d = static_cast<double>(head_dim), pi = std::acos(-1.0);
  const auto end_of = [&](double rotations) {
    return d * std::log(static_cast<double>(rope.original_max_positions) / (rotations * 2 * pi)) /
           (2 * std::log(rope.theta));
  };
  double low = end_of(rope.beta_fast), high = end_of(rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0), high = std::min(high, d - 1);
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    const double plain = std::pow(rope.theta, -2.0 * static_cast<double>(i) / d);
    const double ramp = std::min(1.0, std::max(0.0, (static_cast<double>(i) - low) / (high - low)));
    frequencies.push_back(plain / rope.factor * ramp + plain * (1 - ramp));
  }
  return frequencies;
}

Json qwen3_moe() {
  Json config = llama();
  config["model_type"] = "qwen3_moe";
  config["architectures"] = {"Qwen3MoeForCausalLM"};
  config.update(Json{{"num_experts", 16}, {"num_experts_per_tok", 4}, {"moe_intermediate_size", 96}});
  return config;
}

std::vector<bool> mixing(const Architecture& a) {
  std::vector<bool> blocks;
  for (std::int64_t i = 0; i < a.layers; ++i) blocks.push_back(a.block(i).mixes_experts);
  return blocks;
}

TEST(Architecture, ExpertsAreReadInBothSpellings) {
  Json config = qwen3_moe();
  config["num_hidden_layers"] = 6;
  const Architecture all = read_architecture(config, "test");
  EXPECT_EQ(all.experts, (ExpertShape{.count = 16, .taken = 4, .width = 96, .normalised = false}));
  EXPECT_EQ(mixing(all), std::vector<bool>(6, true));
  EXPECT_TRUE(all.qk_norm);
  config["norm_topk_prob"] = true;
  EXPECT_NE(facts_of(read_architecture(config, "test")), facts_of(all));
  EXPECT_FALSE(read_architecture(config, "test") == all);
  config["decoder_sparse_step"] = 2;
  config["mlp_only_layers"] = {3};
  config["router_aux_loss_coef"] = 0.001;
  config["output_router_logits"] = true;
  const Architecture some = read_architecture(config, "test");
  EXPECT_TRUE(some.experts.normalised);
  EXPECT_EQ(mixing(some), (std::vector<bool>{false, true, false, false, false, true}));
  EXPECT_NE(facts_of(some), facts_of(all));
  EXPECT_FALSE(some == all);
  // The spelling of transformers 5.
  config["num_local_experts"] = config["num_experts"];
  config.erase("num_experts");
  EXPECT_EQ(read_architecture(config, "test"), some);
  // The defaults of the class for missing keys.
  for (const char* key :
       {"num_local_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"})
    config.erase(key);
  EXPECT_EQ(read_architecture(config, "test").experts,
            (ExpertShape{.count = 128, .taken = 8, .width = 768, .normalised = false, .balance = 0.001}));
  // If every block is dense, the model is not a mixture.
  config["mlp_only_layers"] = {0, 1, 2, 3, 4, 5};
  const Architecture dense = read_architecture(config, "test");
  EXPECT_EQ(dense.experts, ExpertShape{});
  EXPECT_EQ(some.experts.balance, 0.001);
  EXPECT_EQ(all.experts.balance, 0) << "only with output_router_logits";
}

Json glm4_moe() {
  Json config = llama();
  for (const char* key : {"rope_scaling", "rope_theta", "num_key_value_heads"}) config.erase(key);
  config.update(Json{{"model_type", "glm4_moe"},
                     {"architectures", {"Glm4MoeForCausalLM"}},
                     {"num_hidden_layers", 4},
                     {"head_dim", 128},
                     {"n_routed_experts", 16},
                     {"num_experts_per_tok", 4},
                     {"moe_intermediate_size", 96},
                     {"num_nextn_predict_layers", 1}});
  return config;
}

TEST(Architecture, Glm4MoeIsReadWithTheDefaultsOfItsClass) {
  const Architecture a = read_architecture(glm4_moe(), "test");
  EXPECT_EQ(a.heads.kv_heads, 8);
  EXPECT_EQ(a.rotated(), 64);
  EXPECT_FALSE(a.qk_norm || a.qkv_bias || a.output_bias);
  EXPECT_EQ(mixing(a), (std::vector<bool>{false, true, true, true}));
  EXPECT_EQ(a.experts, (ExpertShape{.count = 16,
                                    .taken = 4,
                                    .width = 96,
                                    .normalised = true,
                                    .shared = 96,
                                    .shared_gate = false,
                                    .scores = ops::RouterScores::sigmoid,
                                    .choice_bias = true}));
  EXPECT_EQ(unread_tensors(a), std::vector<std::string>{"model.layers.4."});
  const std::pair<const char*, Json> changes[] = {{"first_k_dense_replace", 2},   {"n_shared_experts", 2},
                                                  {"routed_scaling_factor", 2.5}, {"norm_topk_prob", false},
                                                  {"use_qk_norm", true},          {"attention_bias", true},
                                                  {"partial_rotary_factor", 1.0}, {"n_group", 4}};
  for (const auto& [key, value] : changes) {
    Json config = glm4_moe();
    config[key] = value;
    EXPECT_FALSE(read_architecture(config, "test") == a) << key;
    EXPECT_NE(facts_of(read_architecture(config, "test")), facts_of(a)) << key;
  }
  Json config = glm4_moe();
  config["attention_bias"] = true;
  EXPECT_FALSE(read_architecture(config, "test").output_bias);
  config = glm4_moe();
  config["n_group"] = 4;
  config["topk_group"] = 2;
  EXPECT_EQ(read_architecture(config, "test").experts.taken_groups, 2);
  config["rope_parameters"] = {
      {"rope_theta", 1e4}, {"rope_type", "default"}, {"partial_rotary_factor", 0.25}};
  EXPECT_EQ(read_architecture(config, "test").rotated(), 32) << "the spelling of transformers 5";
  config["first_k_dense_replace"] = 4;
  EXPECT_EQ(read_architecture(config, "test").experts, ExpertShape{}) << "every block is dense";
}

TEST(Architecture, RoutersThatCannotBeAreRefusedByName) {
  struct Row {
    Json keys;
    const char* said;
  };
  const Row rows[] = {
      {{{"n_group", 3}}, "an n_group that divides n_routed_experts, 16"},
      {{{"n_group", 16}, {"topk_group", 8}}, "two or more experts in a group"},
      {{{"n_group", 4}, {"topk_group", 5}}, "a topk_group of at most n_group, 4"},
      {{{"topk_group", 2}}, "a topk_group of at most n_group, 1"},
      {{{"n_group", 8}, {"topk_group", 1}}, "num_experts_per_tok of at most 2"},
      {{{"num_experts_per_tok", 17}}, "num_experts_per_tok of at most 16"},
      {{{"scoring_func", "softmax"}}, "scoring_func: sigmoid"},
      {{{"topk_method", "greedy"}}, "topk_method: noaux_tc"},
      {{{"routed_scaling_factor", 0}}, "routed_scaling_factor"},
      {{{"partial_rotary_factor", 0.01}}, "partial_rotary_factor"},
      {{{"partial_rotary_factor", 1.5}}, "partial_rotary_factor"},
      {{{"n_shared_experts", 0}}, "n_shared_experts"},
      {{{"clip_qkv", 8.0}}, "clip_qkv"},
  };
  for (const Row& row : rows) {
    Json config = glm4_moe();
    config.update(row.keys);
    EXPECT_NE(refusal(config).find(row.said), std::string::npos) << row.keys << refusal(config);
  }
}

/// As OpenAI published it, and without the defaults of its class.
Json gpt_oss() {
  return {{"model_type", "gpt_oss"},
          {"architectures", {"GptOssForCausalLM"}},
          {"num_local_experts", 32},
          {"experts_per_token", 4},
          {"num_hidden_layers", 24},
          {"initial_context_length", 4096},
          {"hidden_act", "silu"},
          {"swiglu_limit", 7.0},
          {"output_router_logits", false},
          {"router_aux_loss_coef", 0.9},
          {"rope_theta", 150000},
          {"rope_scaling",
           {{"rope_type", "yarn"},
            {"factor", 32.0},
            {"beta_fast", 32.0},
            {"beta_slow", 1.0},
            {"truncate", false},
            {"original_max_position_embeddings", 4096}}},
          {"quantization_config", {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}}}};
}

TEST(Architecture, GptOssIsReadWithTheDefaultsOfItsClass) {
  Architecture a = read_architecture(gpt_oss(), "test");
  EXPECT_EQ(a.experts, (ExpertShape{.count = 32,
                                    .taken = 4,
                                    .width = 2880,
                                    .normalised = true,
                                    .names = ExpertShape::Names::gpt_oss,
                                    .biases = true}));
  EXPECT_TRUE(a.qkv_bias && a.output_bias && a.attention_sinks);
  EXPECT_EQ(a.activation, ops::Activation::clamped);
  EXPECT_EQ(a.heads.head_dim, 64);
  EXPECT_EQ(a.block(0).window, 128);
  EXPECT_EQ(a.block(1).window, 0);
  EXPECT_FALSE(a.ropes.front().truncate);
  EXPECT_EQ(a.stored.format, StoredWeights::Format::mxfp4);
  EXPECT_EQ(mixing(a), std::vector<bool>(24, true));
  a.stored = {};
  EXPECT_EQ(a, find_shape("gpt-oss-20b"));
  const std::pair<const char*, Json> changes[] = {
      {"swiglu_limit", 5.0}, {"attention_bias", false}, {"sliding_window", 64}, {"num_experts_per_tok", 2}};
  for (const auto& [key, value] : changes) {
    Json config = gpt_oss();
    config[key] = value;
    EXPECT_FALSE(read_architecture(config, "test") == read_architecture(gpt_oss(), "test")) << key;
    EXPECT_NE(facts_of(read_architecture(config, "test")), facts_of(a)) << key;
  }
  Json config = gpt_oss();
  config["swiglu_alpha"] = 1.5;
  EXPECT_NE(refusal(config).find("swiglu_alpha: 1.702"), std::string::npos);
  config = gpt_oss();
  config.erase("rope_scaling");
  EXPECT_NE(refusal(config).find("'rope_parameters' or 'rope_scaling'"), std::string::npos);
}

/// A published config.json of each family, with the keys that transformers does not read.
Json published(const std::string& family) {
  const std::string common = R"("vocab_size": 512, "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 8, "num_attention_heads": 4, "use_cache": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.48.0.dev0", "initializer_range": 0.02, "bos_token_id": 5,
    "eos_token_id": 2, )";
  const std::map<std::string, std::string> files{
      {"glm4", R"("architectures": ["Glm4ForCausalLM"], "attention_bias": true, "attention_dropout": 0.0,
        "head_dim": 16, "hidden_act": "silu", "max_position_embeddings": 32768, "num_key_value_heads": 2,
        "pad_token_id": 151329, "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
        "tie_word_embeddings": false)"},
      {"ernie4_5", R"("architectures": ["Ernie4_5ForCausalLM"], "hidden_act": "silu", "head_dim": 16,
        "max_position_embeddings": 131072, "num_key_value_heads": 2, "pad_token_id": 0,
        "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "rope_scaling": null, "use_bias": false,
        "tie_word_embeddings": true)"},
      {"starcoder2", R"("architectures": ["Starcoder2ForCausalLM"], "activation_function": "gelu",
        "attention_dropout": 0.1, "attention_softmax_in_fp32": true, "embedding_dropout": 0.1,
        "hidden_act": "gelu_pytorch_tanh", "layer_norm_epsilon": 1e-05, "max_position_embeddings": 16384,
        "mlp_type": "default", "norm_epsilon": 1e-05, "norm_type": "layer_norm", "num_key_value_heads": 2,
        "residual_dropout": 0.1, "rope_theta": 999999.44, "scale_attention_softmax_in_fp32": true,
        "scale_attn_weights": true, "sliding_window": 4096, "use_bias": true)"},
      {"cohere2", R"("architectures": ["Cohere2ForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "cache_implementation": "hybrid", "head_dim": 16, "hidden_act": "silu",
        "layer_norm_eps": 1e-05, "layer_switch": 4, "logit_scale": 0.25, "max_position_embeddings": 8192,
        "num_key_value_heads": 2, "order_of_interleaved_layers": "local_attn_first", "pad_token_id": 0,
        "position_embedding_type": "rope_gptj", "rope_scaling": null, "rope_theta": 50000.0,
        "rotary_pct": 1.0, "sliding_window": 4096, "sliding_window_pattern": 4,
        "use_embedding_sharing": true, "use_gated_activation": true, "use_parallel_block": true,
        "use_parallel_embedding": true, "use_qk_norm": false)"},
      {"apertus", R"("architectures": ["ApertusForCausalLM"], "attention_bias": false,
        "attention_dropout": 0.0, "hidden_act": "xielu", "hidden_dropout": 0.0,
        "max_position_embeddings": 65536, "mlp_bias": false, "num_key_value_heads": 2, "pad_token_id": 3,
        "post_norm": false, "qk_norm": true, "rms_norm_eps": 1e-05, "rope_theta": 12000000.0,
        "rope_scaling": {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192, "rope_type": "llama3", "type": "llama3"},
        "tie_word_embeddings": false)"}};
  return parse_json("{\"model_type\": \"" + family + "\", " + common + files.at(family) + "}", "test");
}

TEST(Architecture, PublishedFilesOfFamiliesWithTheirOwnBlocksAreRead) {
  const Architecture glm = read_architecture(published("glm4"), "test");
  EXPECT_TRUE(glm.interleaved_rotary && glm.sublayer_norms && glm.qkv_bias && !glm.output_bias);
  EXPECT_EQ(glm.rotary_dim, 8);
  EXPECT_TRUE(glm.fused_gate_up && !glm.fused_qkv);
  EXPECT_EQ(glm.padding_id, -1) << "outside of the vocabulary";
  const Architecture ernie = read_architecture(published("ernie4_5"), "test");
  EXPECT_TRUE(ernie.interleaved_rotary && ernie.tied && !ernie.qkv_bias && !ernie.mlp_bias);
  EXPECT_EQ(ernie.rotary_dim, 0);
  EXPECT_EQ(ernie.padding_id, 0);
  const Architecture code = read_architecture(published("starcoder2"), "test");
  EXPECT_TRUE(code.layer_norm && code.norm_bias && !code.gated && code.tied);
  EXPECT_TRUE(code.qkv_bias && code.output_bias && code.mlp_bias && !code.parallel);
  EXPECT_EQ(code.activation, ops::Activation::gelu_tanh);
  EXPECT_EQ(code.norm_eps, 1e-5);
  EXPECT_EQ(code.block(7).window, 4096);
  const Architecture command = read_architecture(published("cohere2"), "test");
  EXPECT_TRUE(command.layer_norm && !command.norm_bias && command.parallel && command.gated);
  EXPECT_TRUE(command.interleaved_rotary && command.tied);
  EXPECT_EQ(command.logits_divisor, 4);
  for (std::int64_t i = 0; i < 8; ++i) {
    EXPECT_EQ(command.block(i).window, i % 4 == 3 ? 0 : 4096) << i;
    EXPECT_EQ(command.block(i).rope, i % 4 == 3 ? kNoRope : 0) << i;
  }
  const Architecture swiss = read_architecture(published("apertus"), "test");
  EXPECT_TRUE(swiss.qk_norm && !swiss.gated && !swiss.tied && !swiss.layer_norm);
  EXPECT_EQ(swiss.activation, ops::Activation::xielu);
  EXPECT_EQ(swiss.ropes.at(0).kind, RopeKind::llama3);
  EXPECT_EQ(swiss.names.input_norm, "attention_layernorm");
}

TEST(Architecture, MissingKeysOfTheseFamiliesHaveTheDefaultsOfTheirClasses) {
  const auto without = [](const std::string& family, std::initializer_list<const char*> keys) {
    Json config = published(family);
    for (const char* key : keys) config.erase(key);
    return read_architecture(config, "test");
  };
  const Architecture glm =
      without("glm4", {"head_dim", "partial_rotary_factor", "attention_bias", "rms_norm_eps"});
  EXPECT_EQ(glm.heads.head_dim, 128);
  EXPECT_EQ(glm.rotary_dim, 64);
  EXPECT_EQ(glm.norm_eps, 1.5625e-7);
  EXPECT_TRUE(glm.qkv_bias);
  const Architecture ernie = without("ernie4_5", {"head_dim", "rope_theta", "tie_word_embeddings"});
  EXPECT_EQ(ernie.heads.head_dim, 128);
  EXPECT_EQ(ernie.ropes.at(0).theta, 500000.0);
  EXPECT_TRUE(ernie.tied);
  const Architecture code = without("starcoder2", {"use_bias", "hidden_act", "sliding_window"});
  EXPECT_TRUE(code.mlp_bias);
  EXPECT_EQ(code.activation, ops::Activation::gelu_tanh);
  EXPECT_EQ(code.block(0).window, 0);
  const Architecture command =
      without("cohere2", {"logit_scale", "sliding_window", "sliding_window_pattern", "head_dim"});
  EXPECT_EQ(command.logits_divisor, 16);
  EXPECT_EQ(command.block(2).window, 4096);
  EXPECT_EQ(command.block(3).window, 0);
  EXPECT_EQ(without("apertus", {"hidden_act"}).activation, ops::Activation::xielu);
}

TEST(Architecture, ValuesThatTheseFamiliesDoNotHaveAreRefusedByName) {
  const auto refused = [](const std::string& family, const std::string& key, const Json& value) {
    Json config = published(family);
    config[key] = value;
    return refusal(config).find(key) != std::string::npos;
  };
  EXPECT_TRUE(refused("cohere2", "logit_scale", -0.25));
  EXPECT_TRUE(refused("cohere2", "logit_scale", 0));
  EXPECT_TRUE(refused("cohere2", "layer_norm_eps", -1e-5));
  EXPECT_TRUE(refused("cohere2", "layer_types", Json::array({"full_attention"})));
  EXPECT_TRUE(refused("cohere2", "layer_types", Json::array({1, 2, 3, 4, 5, 6, 7, 8})));
  EXPECT_TRUE(refused("cohere2", "sliding_window_pattern", 0));
  EXPECT_TRUE(refused("cohere2", "sliding_window", nullptr));
  EXPECT_TRUE(refused("cohere2", "rms_norm_eps", 1e-5));
  EXPECT_TRUE(refused("starcoder2", "hidden_act", "relu"));
  EXPECT_TRUE(refused("starcoder2", "norm_epsilon", 0));
  EXPECT_TRUE(refused("starcoder2", "use_bias", "yes"));
  EXPECT_TRUE(refused("starcoder2", "attention_bias", true));
  EXPECT_TRUE(refused("apertus", "mlp_bias", true));
  EXPECT_TRUE(refused("apertus", "hidden_dropout", 0.1));
  EXPECT_TRUE(refused("ernie4_5", "hidden_act", "xielu"));
  EXPECT_TRUE(refused("ernie4_5", "partial_rotary_factor", 0.5));
  EXPECT_TRUE(refused("ernie4_5", "moe_num_experts", 64));
  EXPECT_TRUE(refused("glm4", "partial_rotary_factor", 1.5));
  EXPECT_TRUE(refused("glm4", "partial_rotary_factor", 0.01));
  Json config = published("apertus");
  config.erase("rope_scaling");
  EXPECT_NE(refusal(config).find("rope_parameters"), std::string::npos) << "its class has a scaling";
}

TEST(Architecture, OlmoeIsReadWithTheDefaultsOfItsClass) {
  Json config = llama();
  for (const char* key : {"rope_scaling", "intermediate_size", "rms_norm_eps"}) config.erase(key);
  config["model_type"] = "olmoe";
  config["architectures"] = {"OlmoeForCausalLM"};
  config["clip_qkv"] = nullptr;
  const Architecture a = read_architecture(config, "test");
  EXPECT_EQ(a.experts, (ExpertShape{.count = 64, .taken = 8, .width = 2048, .normalised = false}));
  EXPECT_TRUE(a.qk_norm && a.qk_norm_of_all_heads);
  EXPECT_EQ(a.padding_id, 1);
  EXPECT_EQ(a.norm_eps, 1e-5);
  EXPECT_EQ(mixing(a), std::vector<bool>(32, true));
  EXPECT_THROW(require_splits(a, 2, 1), Error) << "a norm reads all heads";
  config["clip_qkv"] = 8.0;
  EXPECT_NE(refusal(config).find("clip_qkv: null"), std::string::npos);
}

TEST(Architecture, ExpertsWindowsAreUsedOnlyWhenAskedFor) {
  Json config = qwen3_moe();
  config["sliding_window"] = 64;
  EXPECT_EQ(read_architecture(config, "test").block(0).window, 0);
  config["use_sliding_window"] = true;
  EXPECT_EQ(read_architecture(config, "test").block(0).window, 64);
  EXPECT_EQ(read_architecture(config, "test").block(31).window, 64);
}

TEST(Architecture, ExpertsThatCannotBeAreRefusedByName) {
  const auto names = [](const std::string& key, const Json& value) {
    Json config = qwen3_moe();
    config[key] = value;
    return refusal(config).find(key) != std::string::npos;
  };
  EXPECT_TRUE(names("num_experts_per_tok", 17));
  for (const char* key :
       {"num_experts", "num_experts_per_tok", "moe_intermediate_size", "decoder_sparse_step"}) {
    for (const Json& bad : {Json(-1), Json(1e300), Json("4"), Json(1.5)}) EXPECT_TRUE(names(key, bad)) << key;
  }
  EXPECT_TRUE(names("num_experts", 1025));
  EXPECT_TRUE(names("num_local_experts", 15)) << "the other spelling says 16";
  EXPECT_TRUE(names("norm_topk_prob", 1));
  for (const Json& bad : {Json(3), Json("1"), Json::array({1.5}), Json::array({"1"})})
    EXPECT_TRUE(names("mlp_only_layers", bad));
  // Other families refuse the keys.
  Json config = llama();
  config["num_experts"] = 4;
  EXPECT_NE(refusal(config).find("num_experts"), std::string::npos);
}

TEST(Rope, YarnFollowsItsFormulaWithTruncatedEndsAndWithout) {
  std::vector<std::vector<float>> both;
  for (const bool truncate : {true, false}) {
    const Rope rope{.kind = RopeKind::yarn,
                    .theta = 1e6,
                    .factor = 4.0,
                    .original_max_positions = 1000,
                    .beta_fast = 32.0,
                    .beta_slow = 1.0,
                    .truncate = truncate};
    const std::vector<double> expected = yarn_in_double(rope, 64);
    const std::vector<float> found = inverse_frequencies(rope, 64);
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i] / expected[i], 1, 5e-7) << i;
    both.push_back(found);
  }
  EXPECT_NE(both[0], both[1]) << "the sample tells truncated ends from others";
}

TEST(Rope, Llama3KeepsShortWavelengthsAndStretchesLongOnes) {
  const Rope rope{.kind = RopeKind::llama3, .theta = 500000.0, .factor = 8.0, .original_max_positions = 8192};
  const std::vector<float> scaled = inverse_frequencies(rope, 128);
  const std::vector<float> plain = inverse_frequencies({.theta = 500000.0}, 128);
  ASSERT_EQ(scaled.size(), 64u);
  EXPECT_EQ(scaled.front(), 1.0f);
  EXPECT_EQ(scaled.back(), plain.back() / 8.0f);
  for (std::size_t i = 0; i < plain.size(); ++i) {
    EXPECT_NEAR(plain[i], std::pow(500000.0, -2.0 * static_cast<double>(i) / 128.0), 1e-6 * plain[i]);
    EXPECT_LE(scaled[i], plain[i]);
    EXPECT_GE(scaled[i], plain[i] / 8.0f);
    if (i > 0) {
      EXPECT_LT(scaled[i], scaled[i - 1]);
    }
  }
}

// The formula of transformers' _compute_llama3_parameters.
TEST(Rope, Llama3FollowsItsFormula) {
  Rope rope{.kind = RopeKind::llama3, .theta = 500000.0, .factor = 8.0, .original_max_positions = 8192};
  rope.low_freq_factor = 1.5;
  rope.high_freq_factor = 5.0;
  const std::vector<float> found = inverse_frequencies(rope, 128);
  const std::vector<float> plain = inverse_frequencies({.theta = 500000.0}, 128);
  std::set<int> ranges;
  for (std::size_t i = 0; i < plain.size(); ++i) {
    const double f = static_cast<double>(plain[i]), turns = 8192 * f / (2 * std::acos(-1.0));
    const double kept = std::clamp((turns - 1.5) / (5.0 - 1.5), 0.0, 1.0);
    ranges.insert(kept == 0 ? 0 : kept == 1 ? 2 : 1);
    EXPECT_NEAR(found[i] / ((1 - kept) * f / 8 + kept * f), 1, 2e-7) << i;
  }
  EXPECT_EQ(ranges.size(), 3u) << "the sample has frequencies of all three ranges";
}

}  // namespace
}  // namespace octet::model::architecture_test
