// config.json of families with multi-head latent attention: published files, values that cannot be, tensors,
// caches of decoding, work.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"
#include "octet/model/kv_cache.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"
#include "octet/model/work.h"

namespace octet::model::latent_families_test {
namespace {

/// As published, without keys of quantised weights.
Json deepseek_v3() {
  return parse_json(R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
    "aux_loss_alpha": 0.001, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
    "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02, "intermediate_size": 18432,
    "kv_lora_rank": 512, "max_position_embeddings": 163840, "model_type": "deepseek_v3",
    "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8, "n_routed_experts": 256,
    "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128, "num_experts_per_tok": 8,
    "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "pretraining_tp": 1,
    "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 4096, "type": "yarn"},
    "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "seq_aux": true,
    "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc", "torch_dtype": "bfloat16",
    "transformers_version": "4.33.1", "use_cache": true, "v_head_dim": 128, "vocab_size": 129280})",
                    "test");
}

Json with(Json config, const Json& keys) {
  config.update(keys);
  return config;
}

Json moonlight() {
  Json config = with(deepseek_v3(), parse_json(R"({"first_k_dense_replace": 1, "hidden_size": 2048,
    "intermediate_size": 11264, "max_position_embeddings": 8192, "moe_intermediate_size": 1408, "n_group": 1,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16, "num_experts_per_tok": 6,
    "num_hidden_layers": 27, "num_key_value_heads": 16, "num_nextn_predict_layers": 0, "q_lora_rank": null,
    "rms_norm_eps": 1e-05, "rope_theta": 50000.0, "routed_scaling_factor": 2.446, "topk_group": 1,
    "vocab_size": 163840})",
                                               "test"));
  config.erase("rope_scaling");
  return config;
}

Json kimi_k2() {
  Json config = with(deepseek_v3(), parse_json(R"({"model_type": "kimi_k2", "first_k_dense_replace": 1,
    "max_position_embeddings": 131072, "n_group": 1, "n_routed_experts": 384, "num_attention_heads": 64,
    "num_key_value_heads": 64, "num_nextn_predict_layers": 0, "rope_theta": 50000.0,
    "routed_scaling_factor": 2.827, "topk_group": 1, "vocab_size": 163840})",
                                               "test"));
  for (const char* key : {"beta_fast", "beta_slow"}) config["rope_scaling"][key] = 1.0;
  config["rope_scaling"]["factor"] = 32.0;
  return config;
}

Json glm4_moe_lite() {
  return parse_json(R"({"architectures": ["Glm4MoeLiteForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "pad_token_id": 154820, "hidden_act": "silu", "hidden_size": 2048,
    "intermediate_size": 10240, "max_position_embeddings": 202752, "model_type": "glm4_moe_lite",
    "moe_intermediate_size": 1536, "topk_method": "noaux_tc", "norm_topk_prob": true,
    "num_attention_heads": 20, "n_group": 1, "topk_group": 1, "n_routed_experts": 64, "n_shared_experts": 1,
    "routed_scaling_factor": 1.8, "num_experts_per_tok": 4, "first_k_dense_replace": 1,
    "num_hidden_layers": 47, "num_key_value_heads": 20, "num_nextn_predict_layers": 1,
    "partial_rotary_factor": 1.0, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
    "tie_word_embeddings": false, "dtype": "bfloat16", "q_lora_rank": 768, "kv_lora_rank": 512,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "v_head_dim": 256, "vocab_size": 154880})",
                    "test");
}

Json deepseek_v2() {
  Json config = with(moonlight(), parse_json(R"({"architectures": ["DeepseekV2ForCausalLM"],
    "model_type": "deepseek_v2", "intermediate_size": 10944, "max_position_embeddings": 163840,
    "norm_topk_prob": false, "rms_norm_eps": 1e-06, "rope_theta": 10000, "routed_scaling_factor": 1.0,
    "scoring_func": "softmax", "topk_method": "greedy", "vocab_size": 102400,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707,
                     "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096, "type": "yarn"}})",
                                             "test"));
  config.erase("num_nextn_predict_layers");
  return config;
}

Architecture read(const Json& config) {
  return read_architecture(config, "test");
}

std::string refusal(const Json& config) {
  try {
    read(config);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    return error.what();
  }
  return "not refused";
}

TEST(LatentFamilies, PublishedFilesAreTheShapesOfTheirNames) {
  EXPECT_EQ(read(deepseek_v3()), find_shape("deepseek-v3"));
  Architecture a = read(moonlight());
  EXPECT_EQ(a.further_blocks, 0);
  a.further_blocks = 1;
  EXPECT_EQ(a, find_shape("moonlight-16b-a3b"));
  a = read(kimi_k2());
  a.further_blocks = 1;
  EXPECT_EQ(a, find_shape("kimi-k2"));
  a = read(glm4_moe_lite());
  a.padding_id = -1;
  EXPECT_EQ(a, find_shape("glm-4.7-flash"));
  EXPECT_EQ(read(deepseek_v2()), find_shape("deepseek-v2-lite"));
}

TEST(LatentFamilies, KeysOfHeadsAndLatentsAreRead) {
  const Architecture a = read(deepseek_v3());
  EXPECT_EQ(a.latent, (LatentShape{.heads = {128, 128, 64, 128}, .kv_rank = 512, .q_rank = 1536}));
  EXPECT_EQ(a.heads.kv_heads, 128);
  EXPECT_EQ(a.heads.head_dim, 192);
  EXPECT_EQ(a.rotated(), 64);
  EXPECT_EQ(a.attended_width(), 128 * 128);
  EXPECT_TRUE(a.interleaved_rotary);
  EXPECT_EQ(unread_tensors(a), std::vector<std::string>{"model.layers.61."});
  EXPECT_EQ(a.experts, (ExpertShape{.count = 256,
                                    .taken = 8,
                                    .width = 2048,
                                    .normalised = true,
                                    .shared = 2048,
                                    .shared_gate = false,
                                    .scores = ops::RouterScores::sigmoid,
                                    .scale = 2.5,
                                    .groups = 8,
                                    .taken_groups = 4,
                                    .choice_bias = true}));
  EXPECT_EQ(std::ranges::count_if(a.blocks, &BlockShape::mixes_experts), 58);
  const std::pair<const char*, Json> changes[] = {{"q_lora_rank", nullptr},   {"kv_lora_rank", 256},
                                                  {"qk_nope_head_dim", 64},   {"v_head_dim", 64},
                                                  {"rope_interleave", false}, {"attention_bias", true}};
  for (const auto& [key, value] : changes) {
    const Architecture other = read(with(deepseek_v3(), {{key, value}}));
    EXPECT_FALSE(other == a) << key;
    EXPECT_NE(facts_of(other), facts_of(a)) << key;
  }
  EXPECT_EQ(read(moonlight()).latent.q_rank, 0);
  EXPECT_EQ(read(kimi_k2()).ropes.front().beta_fast, 1.0);
}

// transformers multiplies the scale of attention by the square of YaRN's scale.
TEST(LatentFamilies, TheScaleOfAttentionHasTheScaleOfYarn) {
  const double m = 0.1 * std::log(40.0) + 1, plain = 1 / std::sqrt(192.0);
  EXPECT_NEAR(read(deepseek_v3()).attention_scale, plain * m * m, 1e-12);
  EXPECT_EQ(read(deepseek_v3()).ropes.front().attention_factor, 1.0);
  EXPECT_NEAR(read(moonlight()).attention_scale, plain, 1e-12);
  const double small = 0.0707 * std::log(40.0) + 1;
  EXPECT_NEAR(read(deepseek_v2()).attention_scale, plain * small * small, 1e-12);
  Json config = deepseek_v3();
  config["rope_scaling"].erase("mscale_all_dim");
  EXPECT_NEAR(read(config).attention_scale, plain, 1e-12);
  EXPECT_NEAR(read(config).ropes.front().attention_factor, m, 1e-12);
  config["rope_scaling"]["mscale_all_dim"] = 0;
  EXPECT_NEAR(read(config).attention_scale, plain, 1e-12);
  EXPECT_NEAR(read(config).ropes.front().attention_factor, m, 1e-12) << "zero stands for no value";
}

TEST(LatentFamilies, TheScaleOfYarnIsReadInEachSpelling) {
  Json config = deepseek_v3(), parameters = config["rope_scaling"];
  parameters["rope_theta"] = config["rope_theta"];
  config.erase("rope_scaling");
  EXPECT_EQ(read(with(config, {{"rope_parameters", parameters}})), read(deepseek_v3()));
  const Json nested{{"rope_parameters", {{"full_attention", parameters}}}};
  EXPECT_EQ(read(with(config, nested)), read(deepseek_v3()));
}

TEST(LatentFamilies, MissingKeysHaveTheDefaultsOfTheirClasses) {
  const Architecture v3 = read({{"model_type", "deepseek_v3"}});
  EXPECT_EQ(v3.latent, read(deepseek_v3()).latent);
  EXPECT_EQ(v3.experts, read(deepseek_v3()).experts);
  EXPECT_EQ(v3.blocks, read(deepseek_v3()).blocks);
  const Architecture lite = read({{"model_type", "glm4_moe_lite"}});
  EXPECT_EQ(lite.latent, read(glm4_moe_lite()).latent);
  EXPECT_EQ(lite.experts, read(glm4_moe_lite()).experts);
  EXPECT_EQ(lite.norm_eps, 1e-5);
  EXPECT_EQ(lite.latent.norm_eps, 1e-6) << "norms of latents have the epsilon of their class";
  const Architecture v2 = read({{"model_type", "deepseek_v2"}, {"num_experts_per_tok", 6}});
  EXPECT_EQ(v2.latent, (LatentShape{.heads = {32, 128, 64, 128}, .kv_rank = 512, .q_rank = 1536}));
  EXPECT_TRUE(v2.blocks.front().mixes_experts);
  EXPECT_TRUE(unread_tensors(v2).empty());
  EXPECT_NE(refusal({{"model_type", "deepseek_v2"}}).find("num_experts_per_tok"), std::string::npos);
}

TEST(LatentFamilies, RoutersOfDeepseekV2AreRead) {
  const Architecture greedy = read(deepseek_v2());
  EXPECT_EQ(greedy.experts.scores, ops::RouterScores::softmax);
  EXPECT_FALSE(greedy.experts.normalised || greedy.experts.choice_bias || greedy.experts.shared_gate);
  EXPECT_EQ(greedy.experts.shared, 2 * 1408);
  EXPECT_EQ(greedy.experts.groups, 1);
  const Json groups{{"topk_method", "group_limited_greedy"}, {"n_group", 8}, {"topk_group", 3}};
  const Architecture limited = read(with(deepseek_v2(), groups));
  EXPECT_EQ(limited.experts.groups, 8);
  EXPECT_EQ(limited.experts.taken_groups, 3);
  EXPECT_EQ(limited.experts.group_best, 1);
  EXPECT_NE(facts_of(limited), facts_of(greedy));
}

TEST(LatentFamilies, ListsOfDenseBlocksAreRead) {
  const Json config = with(glm4_moe_lite(), {{"num_hidden_layers", 3}});
  const Architecture list = read(with(config, {{"mlp_layer_types", {"sparse", "dense", "sparse"}}}));
  EXPECT_TRUE(list.blocks[0].mixes_experts && !list.blocks[1].mixes_experts);
  const Architecture dense = read(with(config, {{"mlp_layer_types", {"dense", "dense", "dense"}}}));
  EXPECT_EQ(dense.experts, ExpertShape{});
  EXPECT_TRUE(read(config).blocks[1].mixes_experts);
}

TEST(LatentFamilies, ValuesThatCannotBeAreRefusedByName) {
  struct Row {
    Json config;
    Json keys;
    const char* said;
  };
  const Row rows[] = {
      {deepseek_v3(), {{"qk_rope_head_dim", 63}}, "an even qk_rope_head_dim"},
      {deepseek_v3(), {{"qk_nope_head_dim", 127}}, "an even qk_nope_head_dim"},
      {deepseek_v3(), {{"v_head_dim", 193}}, "qk_nope_head_dim + qk_rope_head_dim, 192"},
      {deepseek_v3(), {{"qk_nope_head_dim", 4096}}, "the keys are too wide"},
      {deepseek_v3(), {{"num_key_value_heads", 8}}, "'num_key_value_heads' does not fit"},
      {deepseek_v3(), {{"head_dim", 128}}, "64, qk_rope_head_dim"},
      {deepseek_v3(), {{"qk_head_dim", 128}}, "192, qk_nope_head_dim"},
      {deepseek_v3(), {{"kv_lora_rank", 0}}, "kv_lora_rank"},
      {deepseek_v3(), {{"q_lora_rank", 0}}, "q_lora_rank"},
      {deepseek_v3(), {{"moe_layer_freq", 2}}, "moe_layer_freq: 1"},
      {deepseek_v3(), {{"scoring_func", "softmax"}}, "scoring_func: sigmoid"},
      {deepseek_v3(), {{"partial_rotary_factor", 0.5}}, "partial_rotary_factor"},
      {moonlight(), {{"attention_bias", true}}, "q_lora_rank: null"},
      {glm4_moe_lite(), {{"first_k_dense_replace", 2}}, "mlp_layer_types, a list of names"},
      {glm4_moe_lite(), {{"mlp_layer_types", {"dense"}}}, "a list of 47 names, dense or sparse"},
      {deepseek_v2(), {{"scoring_func", "sigmoid"}}, "scoring_func: softmax"},
      {deepseek_v2(), {{"topk_method", "noaux_tc"}}, "greedy or group_limited_greedy"},
      {deepseek_v2(), {{"topk_method", "group_limited_greedy"}, {"n_group", nullptr}}, "'n_group'"},
      {deepseek_v2(), {{"norm_topk_prob", true}}, "norm_topk_prob: false"},
      {deepseek_v2(), {{"mlp_bias", true}}, "'mlp_bias' is not supported"}};
  for (const Row& row : rows) {
    const std::string said = refusal(with(row.config, row.keys));
    EXPECT_NE(said.find(row.said), std::string::npos) << row.keys << "\n" << said;
  }
  for (const char* key : {"mscale", "mscale_all_dim"}) {
    for (const double value : {-1.0, 1e8}) {
      Json config = deepseek_v3();
      config["rope_scaling"][key] = value;
      EXPECT_NE(refusal(config).find("'" + std::string(key) + "' cannot be used"), std::string::npos)
          << value;
    }
  }
}

const TensorSpec& tensor_of(const ParameterLayout& layout, std::size_t group, const std::string& name) {
  for (const SegmentSpec& segment : layout.groups.at(group).segments) {
    for (const TensorSpec& tensor : segment.tensors) {
      if (tensor.name == name) return tensor;
    }
  }
  throw std::logic_error("no tensor " + name);
}

TEST(LatentFamilies, TensorsHaveTheNamesAndShapesOfTheirFiles) {
  using Shape = std::vector<std::int64_t>;
  const ParameterLayout layout = build_layout(read(deepseek_v3()));
  const TensorSpec& latents = tensor_of(layout, 1, "layers.0.latents");
  ASSERT_EQ(latents.parts.size(), 2u);
  EXPECT_EQ(latents.parts[0].name, "model.layers.0.self_attn.q_a_proj.weight");
  EXPECT_EQ(latents.parts[0].shape, (Shape{1536, 7168}));
  EXPECT_EQ(latents.parts[1].name, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_EQ(latents.parts[1].shape, (Shape{576, 7168}));
  EXPECT_EQ(tensor_of(layout, 1, "layers.0.q_latent").parts.at(0).shape, (Shape{128 * 192, 1536}));
  EXPECT_EQ(tensor_of(layout, 1, "layers.0.kv_latent").parts.at(0).shape, (Shape{128 * 256, 512}));
  EXPECT_EQ(tensor_of(layout, 1, "layers.0.kv_latent_norm").parts.at(0).name,
            "model.layers.0.self_attn.kv_a_layernorm.weight");
  EXPECT_EQ(tensor_of(layout, 1, "layers.0.output").parts.at(0).shape, (Shape{7168, 128 * 128}));
  const ParameterLayout direct = build_layout(read(moonlight()));
  EXPECT_EQ(tensor_of(direct, 1, "layers.0.latents").parts.at(0).name,
            "model.layers.0.self_attn.q_proj.weight");
  EXPECT_THROW(tensor_of(direct, 1, "layers.0.q_latent"), std::logic_error);
}

TEST(LatentFamilies, RanksDoNotSplitLatents) {
  const Architecture a = read(moonlight());
  EXPECT_NO_THROW(require_splits(a, 1, 8));
  try {
    require_splits(a, 2, 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("multi-head latent attention"), std::string::npos);
  }
}

TEST(LatentFamilies, CachesHoldExpandedKeysAndPaddedValues) {
  const auto bytes = [](const Json& config) {
    return 2 * KvLayout(read(config), DType::bf16, 64).token_bytes();
  };
  EXPECT_EQ(bytes(deepseek_v3()), 96u * 1024);
  EXPECT_EQ(bytes(moonlight()), 12u * 1024);
}

// The operations of a model leave the padding of values out. The work of its layers has it.
TEST(LatentFamilies, PaddingIsWorkOfLayersOnly) {
  const Architecture a = read(moonlight());
  const double growth = flops_per_token(a, 2000) - flops_per_token(a, 1000);
  EXPECT_NEAR(growth, 27 * 3.0 * 1000 * 16 * (192 + 128), 1);
  const auto attention = [&](std::int64_t length) {
    double flops = 0;
    for (const Operation& o : operations(a, 4096, length))
      flops += o.kind == OperationKind::attention && !o.backward ? o.flops : 0;
    return flops;
  };
  EXPECT_NEAR(attention(4096) - attention(2048), 27 * 2.0 * 4096 * 2048 * 16 * 192, 1e6);
}

}  // namespace
}  // namespace octet::model::latent_families_test
