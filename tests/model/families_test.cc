// config.json of dense families of models: published files, values that cannot be, and what each key changes.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"
#include "octet/model/layout.h"

namespace octet::model::families_test {
namespace {

/// Keys that published files share, with the sizes of a model.
Json published(const std::string& type, const std::string& class_name, const char* more) {
  Json config = parse_json(R"({"attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
    "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_hidden_layers": 8, "num_key_value_heads": 8, "torch_dtype": "bfloat16",
    "transformers_version": "4.55.0", "use_cache": true, "vocab_size": 50304, "rms_norm_eps": 1e-05,
    "max_position_embeddings": 8192})",
                           "test");
  config["model_type"] = type;
  config["architectures"] = {class_name};
  config.update(parse_json(more, "test"));
  return config;
}

Json seed_oss() {
  return published(
      "seed_oss", "SeedOssForCausalLM",
      R"({"attention_bias": true, "attention_dropout": 0.1, "attention_out_bias": false, "head_dim": 128,
      "mlp_bias": false, "residual_dropout": 0.1, "rope_scaling": {"rope_type": "default"},
      "rope_theta": 10000000.0, "pretraining_tp": 1, "tie_word_embeddings": false, "num_attention_heads": 80,
      "hidden_size": 5120, "pad_token_id": 1})");
}

Json gemma() {
  return published("gemma", "GemmaForCausalLM",
                   R"({"attention_bias": false, "head_dim": 256, "hidden_act": "gelu",
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2048, "num_attention_heads": 8,
      "num_key_value_heads": 1, "pad_token_id": 0, "rms_norm_eps": 1e-06, "rope_scaling": null,
      "rope_theta": 10000.0})");
}

Json granite() {
  return published("granite", "GraniteForCausalLM",
                   R"({"attention_bias": false, "attention_dropout": 0.1, "attention_multiplier": 0.0078125,
      "embedding_multiplier": 12, "logits_scaling": 16.0, "mlp_bias": false, "residual_multiplier": 0.22,
      "rope_scaling": null, "rope_theta": 10000000.0, "tie_word_embeddings": true, "pad_token_id": 0})");
}

Json smollm3() {
  return published("smollm3", "SmolLM3ForCausalLM",
                   R"({"attention_bias": false, "max_window_layers": 28, "mlp_bias": false,
      "layer_types": ["full_attention", "full_attention", "full_attention", "full_attention",
                      "full_attention", "full_attention", "full_attention", "full_attention"],
      "no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0, 1, 1, 1, 0], "pretraining_tp": 2,
      "rope_scaling": null, "rope_theta": 5000000.0, "sliding_window": null, "use_sliding_window": false})");
}

Json olmo2() {
  return published("olmo2", "Olmo2ForCausalLM",
                   R"({"attention_bias": false, "rope_scaling": null, "rope_theta": 500000,
      "tie_word_embeddings": false, "num_key_value_heads": 32, "pad_token_id": 100277})");
}

Json olmo3() {
  return published("olmo3", "Olmo3ForCausalLM",
                   R"({"attention_bias": false, "rope_theta": 500000, "sliding_window": 4096,
      "rope_scaling": {"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
                       "factor": 8.0, "original_max_position_embeddings": 8192, "rope_type": "yarn"},
      "tie_word_embeddings": false, "max_position_embeddings": 65536})");
}

Json exaone4() {
  return published("exaone4", "Exaone4ForCausalLM",
                   R"({"head_dim": 128, "sliding_window": 4096, "sliding_window_pattern": "LLLG",
      "layer_types": ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention",
                      "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"],
      "rope_scaling": {"factor": 16.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                       "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 1000000, "tie_word_embeddings": false})");
}

Json hunyuan() {
  return published("hunyuan_v1_dense", "HunYuanDenseV1ForCausalLM",
                   R"({"add_classification_head": false, "attention_bias": false, "attention_head_dim": 128,
      "cla_share_factor": 2, "class_num": 0, "dense_list": [4096, 0], "eod_token_id": 127967,
      "head_dim": 128, "im_end_id": 5, "mask_init_id": 12, "mlp_bias": false, "norm_type": "rms",
      "org_vocab_size": 128167, "pad_id": 127961, "pad_token_id": 127961, "pool_type": "last",
      "position_embedding_xdrope": false, "pretraining_tp": 1, "q_lora_rank": null, "text_start_id": 6,
      "rope_scaling": {"alpha": 1000.0, "beta_fast": 32, "beta_slow": 1, "factor": 1.0, "mscale": 1.0,
                       "mscale_all_dim": 0.0, "type": "dynamic"},
      "rope_theta": 10000.0, "tie_word_embeddings": true, "use_cla": false, "use_qk_norm": true,
      "use_rotary_pos_emb": true, "xdrope_section": null})");
}

Json phi3() {
  return published("phi3", "Phi3ForCausalLM",
                   R"({"auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "embd_pdrop": 0.0,
      "attention_bias": false, "original_max_position_embeddings": 4096, "max_position_embeddings": 4096,
      "resid_pdrop": 0.0, "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047,
      "num_key_value_heads": 32, "hidden_size": 3072, "pad_token_id": 32000, "tie_word_embeddings": false})");
}

/// Phi-4-mini's kinds of keys, with four rotated dimensions.
Json phi4_mini() {
  Json config = phi3();
  config.update(parse_json(R"({"full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": false,
      "mlp_bias": false, "max_position_embeddings": 131072, "partial_rotary_factor": 0.5, "hidden_size": 256,
      "rope_scaling": {"long_factor": [1.0, 32.5], "short_factor": [1.0, 1.0], "type": "longrope"},
      "sliding_window": 262144, "num_key_value_heads": 8})",
                           "test"));
  return config;
}

Json ministral3() {
  return published("ministral3", "Ministral3ForCausalLM",
                   R"({"head_dim": 128, "sliding_window": null, "max_position_embeddings": 262144,
      "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0, "llama_4_scaling_beta": 0.1,
                          "max_position_embeddings": 262144, "mscale": 1.0, "mscale_all_dim": 1.0,
                          "original_max_position_embeddings": 16384, "rope_theta": 1000000.0,
                          "rope_type": "yarn", "type": "yarn"}})");
}

Architecture read(const Json& config) {
  return read_architecture(config, "test");
}

Json with(Json config, const Json& keys) {
  if (!keys.is_null()) config.update(keys);
  return config;
}

Json without(Json config, const std::vector<std::string>& keys) {
  for (const std::string& key : keys) config.erase(key);
  return config;
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

/// Names of the stored tensors of the first block.
std::vector<std::string> names_of_block(const Architecture& a) {
  std::vector<std::string> names;
  const ParameterLayout layout = build_layout(a);
  for (const SegmentSpec& segment : layout.groups[1].segments) {
    for (const TensorSpec& tensor : segment.tensors) {
      for (const NamedPart& part : tensor.parts)
        names.push_back(part.name.substr(std::string("model.layers.0.").size()));
    }
  }
  return names;
}

bool has(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

TEST(Families, PublishedFilesAreRead) {
  const Architecture seed = read(seed_oss());
  EXPECT_TRUE(seed.qkv_bias);
  EXPECT_FALSE(seed.output_bias || seed.mlp_bias);
  EXPECT_EQ(seed.q_width(), 80 * 128);
  const Architecture gemma1 = read(gemma());
  EXPECT_EQ(gemma1.activation, ops::Activation::gelu_tanh) << "gelu means its approximation in this family";
  EXPECT_TRUE(gemma1.one_plus_weight && gemma1.tied);
  EXPECT_EQ(gemma1.embedding_scale, std::sqrt(2048.0));
  const Architecture g = read(granite());
  EXPECT_EQ(g.attention_scale, 0.0078125);
  EXPECT_EQ(g.embedding_scale, 12.0);
  EXPECT_EQ(g.residual_multiplier, 0.22);
  EXPECT_EQ(g.logits_divisor, 16.0);
  const Architecture smol = read(smollm3());
  EXPECT_EQ(smol.blocks[2].rope, 0);
  EXPECT_EQ(smol.blocks[3].rope, kNoRope);
  EXPECT_EQ(smol.blocks[3].window, 0);
  EXPECT_TRUE(smol.tied);
  const Architecture second = read(olmo2());
  EXPECT_TRUE(second.sublayer_norms && second.qk_norm_of_all_heads);
  EXPECT_FALSE(second.input_norms);
  EXPECT_THROW(require_splits(second, 2, 1), Error) << "a norm reads all heads";
  const Architecture third = read(olmo3());
  EXPECT_EQ(third.ropes.at(0).kind, RopeKind::yarn);
  EXPECT_EQ(third.ropes.at(1).kind, RopeKind::standard);
  EXPECT_EQ(third.ropes.at(1).theta, 500000.0);
  EXPECT_EQ(third.blocks[2].window, 4096);
  EXPECT_EQ(third.blocks[2].rope, 1);
  EXPECT_EQ(third.blocks[3].window, 0);
  EXPECT_EQ(third.blocks[3].rope, 0);
  const Architecture exaone = read(exaone4());
  EXPECT_EQ(exaone.blocks[2].window, 4096);
  EXPECT_EQ(exaone.blocks[2].rope, 0);
  EXPECT_EQ(exaone.blocks[3].rope, kNoRope);
  EXPECT_TRUE(exaone.qk_norm && exaone.sublayer_norms);
  const Architecture small_exaone = read(with(without(exaone4(), {"layer_types"}),
                                              {{"sliding_window", nullptr}, {"sliding_window_pattern", 4}}));
  EXPECT_EQ(small_exaone.blocks[3].rope, 0) << "without windows, all blocks rotate";
  const Architecture hun = read(hunyuan());
  EXPECT_TRUE(hun.qk_norm && hun.qk_norm_last);
  EXPECT_EQ(hun.ropes.at(0).kind, RopeKind::standard);
  EXPECT_NEAR(hun.ropes.at(0).theta, 10000.0 * std::pow(1000.0, 128.0 / 126.0), 1e-6);
  EXPECT_EQ(read(phi3()).blocks[0].window, 2047);
  const Architecture mini = read(phi4_mini());
  EXPECT_EQ(mini.rotated(), 4);
  EXPECT_EQ(mini.ropes.at(0).kind, RopeKind::longrope);
  EXPECT_EQ(mini.ropes.at(0).original_max_positions, 4096);
  EXPECT_NEAR(mini.ropes.at(0).attention_factor, std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-12);
  const Architecture mistral = read(ministral3());
  EXPECT_EQ(mistral.ropes.at(0).query_beta, 0.1);
  EXPECT_EQ(mistral.ropes.at(0).attention_factor, 1.0) << "mscale and mscale_all_dim are equal";
}

TEST(Families, TensorsHaveTheNamesOfTheirFiles) {
  const std::vector<std::string> fused = names_of_block(read(phi3()));
  EXPECT_TRUE(has(fused, "self_attn.qkv_proj.weight") && has(fused, "mlp.gate_up_proj.weight"));
  EXPECT_FALSE(has(fused, "self_attn.q_proj.weight"));
  const std::vector<std::string> after = names_of_block(read(olmo2()));
  EXPECT_TRUE(has(after, "post_attention_layernorm.weight") &&
              has(after, "post_feedforward_layernorm.weight"));
  EXPECT_FALSE(has(after, "input_layernorm.weight") || has(after, "pre_feedforward_layernorm.weight"));
  const std::vector<std::string> last = names_of_block(read(hunyuan()));
  EXPECT_TRUE(has(last, "self_attn.query_layernorm.weight") && has(last, "self_attn.key_layernorm.weight"));
}

// Ranks of a tensor group have heads of queries, keys and values from one stored tensor.
TEST(Families, FusedTensorsAreSplitByTheirParts) {
  Architecture a = read(with(phi3(), {{"num_key_value_heads", 8}}));
  a.share = {.tensor_rank = 1, .tensor_size = 2};
  const TensorSpec qkv = build_layout(a).groups[1].segments[kBlockMatrices].tensors.front();
  ASSERT_EQ(qkv.parts.size(), 3u);
  const std::int64_t head = 96, all = (32 + 8 + 8) * head;
  const std::pair<std::int64_t, std::int64_t> expected[] = {
      {16 * head, 16 * head}, {36 * head, 4 * head}, {44 * head, 4 * head}};
  for (std::size_t i = 0; i < 3; ++i) {
    ASSERT_TRUE(qkv.parts[i].cut);
    EXPECT_EQ(qkv.parts[i].cut->rows, (Piece{expected[i].first, expected[i].second, all}));
    EXPECT_EQ(qkv.parts[i].count, expected[i].second * 3072);
  }
  EXPECT_EQ(qkv.rows, 24 * head);
}

TEST(Families, EachKeyChangesTheModel) {
  struct Row {
    Json config;
    Json keys;
  };
  const Row rows[] = {
      {seed_oss(), {{"attention_out_bias", true}}},
      {seed_oss(), {{"attention_bias", false}}},
      {seed_oss(), {{"mlp_bias", true}}},
      {gemma(), {{"attention_bias", true}}},
      {granite(), {{"embedding_multiplier", 11.0}}},
      {granite(), {{"attention_multiplier", 0.1}}},
      {granite(), {{"residual_multiplier", 0.3}}},
      {granite(), {{"logits_scaling", 8.0}}},
      {smollm3(), {{"no_rope_layers", {1, 1, 1, 1, 1, 1, 1, 0}}}},
      {without(smollm3(), {"no_rope_layers"}), {{"no_rope_layer_interval", 2}}},
      {without(smollm3(), {"layer_types"}), {{"use_sliding_window", true}, {"sliding_window", 64}}},
      {olmo2(), {{"attention_bias", true}}},
      {olmo3(), {{"sliding_window", 64}}},
      {without(olmo3(), {"rope_scaling"}),
       {{"rope_scaling",
         {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}}}}},
      {without(exaone4(), {"layer_types"}), {{"sliding_window_pattern", 2}}},
      {exaone4(), {{"sliding_window", 64}}},
      {hunyuan(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 1.0}, {"alpha", 50.0}}}}},
      {hunyuan(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 1.0}}}}},
      {phi3(), {{"sliding_window", nullptr}}},
      {phi4_mini(), {{"original_max_position_embeddings", 2048}}},
      {phi4_mini(),
       {{"rope_scaling", {{"type", "longrope"}, {"long_factor", {1.0, 2.0}}, {"short_factor", {1.0, 1.0}}}}}},
      {phi4_mini(),
       {{"rope_scaling",
         {{"type", "longrope"}, {"long_factor", {1.0, 32.5}}, {"short_factor", {1.0, 1.5}}}}}},
  };
  for (Row row : rows) {
    if (row.config.at("model_type") == "exaone4" && !row.config.contains("layer_types"))
      row.config["sliding_window_pattern"] = 4;
    const Architecture before = read(row.config), after = read(with(row.config, row.keys));
    EXPECT_FALSE(before == after) << row.keys;
    EXPECT_NE(facts_of(before), facts_of(after)) << row.keys;
  }
  Json mistral = ministral3();
  mistral["rope_parameters"]["llama_4_scaling_beta"] = 0.2;
  EXPECT_NE(facts_of(read(mistral)), facts_of(read(ministral3())));
}

TEST(Families, ValuesThatCannotBeAreRefusedByName) {
  struct Row {
    Json config;
    Json keys;
    const char* said;
  };
  const Json longrope{{"type", "longrope"}, {"long_factor", {1.0, 2.0}}, {"short_factor", {1.0, 1.0}}};
  const auto scaled = [&](const Json& keys) { return Json{{"rope_scaling", with(longrope, keys)}}; };
  const Row rows[] = {
      {granite(), {{"residual_multiplier", -0.22}}, "'residual_multiplier'"},
      {granite(), {{"residual_multiplier", 0.0}}, "'residual_multiplier'"},
      {granite(), {{"embedding_multiplier", -12.0}}, "'embedding_multiplier'"},
      {granite(), {{"attention_multiplier", "1"}}, "'attention_multiplier'"},
      {granite(), {{"logits_scaling", 0}}, "'logits_scaling'"},
      {granite(), {{"hidden_dropout", 0.1}}, "'hidden_dropout'"},
      {olmo2(), {{"residual_multiplier", 0.22}}, "'residual_multiplier'"},
      {smollm3(), {{"no_rope_layers", {1, 1, 1}}}, "a list of at least 8 numbers"},
      {smollm3(), {{"no_rope_layers", {1, 1, 1, 2, 1, 1, 1, 0}}}, "'no_rope_layers'"},
      {smollm3(), {{"no_rope_layers", 4}}, "'no_rope_layers'"},
      {smollm3(), {{"no_rope_layer_interval", 0}}, "no_rope_layer_interval"},
      {olmo2(), {{"no_rope_layers", {1, 1, 1, 1, 1, 1, 1, 0}}}, "'no_rope_layers'"},
      {olmo2(), {{"clip_qkv", 8.0}}, "'clip_qkv'"},
      {olmo2(), {{"sliding_window", 64}}, "sliding window"},
      {olmo3(), {{"rope_theta", 10000.0}}, "means two things"},
      {olmo3(), {{"rope_local_base_freq", 10000.0}}, "'rope_local_base_freq'"},
      {without(olmo3(), {"rope_scaling"}),
       {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5e5}}}},
       "full_attention and sliding_attention"},
      {without(exaone4(), {"layer_types"}), {}, "sliding_window_pattern"},
      {exaone4(), {{"attention_bias", true}}, "'attention_bias'"},
      {exaone4(), {{"sliding_window", nullptr}}, "no window size"},
      {hunyuan(), {{"mlp_bias", true}}, "'mlp_bias'"},
      {hunyuan(), {{"use_cla", true}}, "'use_cla'"},
      {hunyuan(), {{"position_embedding_xdrope", true}}, "'position_embedding_xdrope'"},
      {hunyuan(), {{"rope_scaling", {{"type", "dynamic"}, {"factor", 1.0}, {"alpha", -1.0}}}}, "'alpha'"},
      {hunyuan(), {{"rope_scaling", {{"type", "dynamic"}}}}, "'factor'"},
      {gemma(), {{"use_bidirectional_attention", true}}, "'use_bidirectional_attention'"},
      {phi3(), {{"embd_pdrop", 0.1}}, "'embd_pdrop'"},
      {phi3(), {{"lm_head_bias", true}}, "'lm_head_bias'"},
      {phi4_mini(), scaled({{"long_factor", {1.0}}}), "'long_factor'"},
      {phi4_mini(), scaled({{"short_factor", {1.0, 0.0}}}), "'short_factor'"},
      {phi4_mini(), scaled({{"short_factor", nullptr}}), "'short_factor'"},
      {phi4_mini(), scaled({{"attention_factor", -1.0}}), "'attention_factor'"},
      {phi4_mini(), {{"original_max_position_embeddings", 0}}, "original_max_position_embeddings"},
      {without(ministral3(), {"rope_parameters"}), {}, "'rope_parameters' or 'rope_scaling'"},
      {olmo2(), {{"rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2.0}, {"alpha", 2.0}}}}, "'alpha'"},
      {exaone4(), scaled({}), "together with norms of heads"},
      {ministral3(), {{"layer_types", {"chunked_attention"}}}, "layer_types"},
  };
  for (const Row& row : rows) {
    const std::string said = refusal(with(row.config, row.keys));
    EXPECT_NE(said.find(row.said), std::string::npos) << row.keys << "\n" << said;
  }
  Json mistral = ministral3();
  mistral["rope_parameters"]["llama_4_scaling_beta"] = -0.1;
  EXPECT_NE(refusal(mistral).find("'llama_4_scaling_beta'"), std::string::npos);
  // Other families have no such keys.
  Json mine = ministral3();
  mine["model_type"] = "mistral";
  mine["architectures"] = {"MistralForCausalLM"};
  EXPECT_NE(refusal(mine).find("'llama_4_scaling_beta'"), std::string::npos);
}

TEST(Families, PartsOfAPatternHaveTheMeaningOfTransformers) {
  // A list may be longer than the model.
  const Architecture a = read(
      with(smollm3(), {{"no_rope_layers", {1, 0, 1, 1, 1, 1, 1, 1, 0, 0}}, {"no_rope_layer_interval", 2}}));
  EXPECT_EQ(a.blocks[1].rope, kNoRope) << "the list, not the interval";
  EXPECT_EQ(a.blocks[3].rope, 0);
  // Windows are in the blocks without a rotary embedding.
  const Architecture slides =
      read(with(without(smollm3(), {"layer_types"}), {{"use_sliding_window", true}, {"sliding_window", 64}}));
  EXPECT_EQ(slides.blocks[3].window, 64);
  EXPECT_EQ(slides.blocks[2].window, 0);
  // The older names of longrope.
  for (const char* name : {"su", "yarn"}) {
    Json old = phi4_mini();
    old["rope_scaling"]["type"] = name;
    EXPECT_EQ(read(old), read(phi4_mini())) << name;
  }
}

// The formula of transformers' _compute_longrope_parameters.
TEST(Rope, LongropeDividesFrequenciesByTheFactorsOfItsLength) {
  const Rope rope{.kind = RopeKind::longrope,
                  .theta = 10000.0,
                  .original_max_positions = 16,
                  .short_factors = {1.0, 1.5, 2.0},
                  .long_factors = {3.0, 4.0, 5.0}};
  for (const bool is_long : {false, true}) {
    const std::vector<float> found = inverse_frequencies(rope, 6, is_long);
    ASSERT_EQ(found.size(), 3u);
    for (std::size_t i = 0; i < 3; ++i) {
      const double divisor = (is_long ? rope.long_factors : rope.short_factors)[i];
      EXPECT_NEAR(found[i] * divisor * std::pow(1e4, 2.0 * static_cast<double>(i) / 6), 1, 5e-7);
    }
  }
}

TEST(Rope, DynamicIsStandardUpToItsLength) {
  const Rope rope{.kind = RopeKind::dynamic, .theta = 10000.0, .factor = 4.0, .original_max_positions = 64};
  EXPECT_EQ(inverse_frequencies(rope, 16), inverse_frequencies({.theta = 10000.0}, 16));
  for (const float f : inverse_frequencies({.kind = RopeKind::none}, 16)) EXPECT_EQ(f, 0.0f);
}

}  // namespace
}  // namespace octet::model::families_test
