// config.json of families with heads that differ between layers: published values, values that cannot be,
// tensors, rotary embeddings, caches of decoding, work.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"
#include "octet/model/kv_cache.h"
#include "octet/model/layout.h"
#include "octet/model/shapes.h"

namespace octet::model::layer_heads_test {
namespace {

Json small() {
  return parse_json(
      R"({"architectures": ["Gemma4ForCausalLM"], "model_type": "gemma4_text", "vocab_size": 100,
    "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 7, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1,
    "attention_k_eq_v": true, "hidden_size_per_layer_input": 0, "final_logit_softcapping": 30.0,
    "sliding_window": 12})",
      "test");
}

Architecture read(const Json& config) {
  return read_architecture(config, "test");
}

Architecture with(const std::string& key, const Json& value) {
  Json config = small();
  config[key] = value;
  return read(config);
}

void expect_refused(const std::string& key, const Json& value, const std::string& message) {
  try {
    with(key, value);
    ADD_FAILURE() << key << ": " << value;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos) << error.what();
  }
}

TEST(LayerHeads, LayersWithFullAttentionHaveHeadsOfTheirOwn) {
  const Architecture a = read(small());
  EXPECT_EQ(a.attention_scale, 1.0);
  EXPECT_EQ(a.logit_soft_cap, 30.0);
  EXPECT_TRUE(a.value_norm && a.output_scales && a.qk_norm && a.sublayer_norms && a.tied);
  EXPECT_FALSE(a.one_plus_weight);
  // Every sixth layer has full attention, and the last one.
  for (const std::int64_t layer : {0, 1, 2, 3, 4}) {
    EXPECT_EQ(a.block(layer).window, 12);
    EXPECT_EQ(a.heads_of(layer).kv_heads, 2);
    EXPECT_EQ(a.heads_of(layer).head_dim, 8);
    EXPECT_FALSE(a.block(layer).keys_as_values);
  }
  for (const std::int64_t layer : {5, 6}) {
    EXPECT_EQ(a.block(layer).window, 0);
    EXPECT_EQ(a.heads_of(layer).kv_heads, 1);
    EXPECT_EQ(a.heads_of(layer).head_dim, 16);
    EXPECT_TRUE(a.block(layer).keys_as_values);
  }
}

TEST(LayerHeads, EveryKeyHasAnEffect) {
  const Architecture a = read(small());
  EXPECT_FALSE(with("global_head_dim", 24) == a);
  EXPECT_FALSE(with("num_global_key_value_heads", 2) == a);
  EXPECT_FALSE(with("attention_k_eq_v", false) == a);
  EXPECT_EQ(with("attention_k_eq_v", false).heads_of(5).kv_heads, 2) << "as in transformers";
  EXPECT_FALSE(with("sliding_window", 13) == a);
  EXPECT_FALSE(with("final_logit_softcapping", nullptr) == a);
  Json config = small();
  config.erase("global_head_dim");
  EXPECT_EQ(read(config).heads_of(5).head_dim, 512) << "the class's default";
  EXPECT_EQ(with("use_bidirectional_attention", "vision"), a);
  EXPECT_EQ(with("use_double_wide_mlp", true), a) << "it widens layers that share keys and values";
}

TEST(LayerHeads, ProportionalRotationKeepsTheFirstFrequenciesOfAWholeHead) {
  const Architecture a = read(small());
  ASSERT_EQ(a.ropes.size(), 2u);
  EXPECT_EQ(a.ropes[0].kind, RopeKind::proportional);
  EXPECT_EQ(a.ropes[0].theta, 1e6);
  EXPECT_EQ(a.ropes[1].kind, RopeKind::standard);
  EXPECT_EQ(a.ropes[1].theta, 1e4);
  const Rope rope{.kind = RopeKind::proportional, .theta = 100.0, .factor = 2.0, .kept_part = 0.5};
  const std::vector<float> found = inverse_frequencies(rope, 8),
                           whole = inverse_frequencies({.theta = 100.0}, 8);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0], whole[0] / 2);
  EXPECT_EQ(found[1], whole[1] / 2);
  EXPECT_EQ(found[2], 0.0f);
  EXPECT_EQ(found[3], 0.0f);
}

TEST(LayerHeads, TransformersWritesTheHeadsForEachLayer) {
  Json config = small();
  for (const char* key : {"global_head_dim", "num_global_key_value_heads"}) config.erase(key);
  config["per_layer_config"] = {{"5", {{"head_dim", 16}, {"num_key_value_heads", 1}}},
                                {"6", {{"head_dim", 16}, {"num_key_value_heads", 1}}}};
  EXPECT_EQ(read(config), read(small()));
  config["per_layer_config"]["6"]["head_dim"] = 24;
  EXPECT_THROW(read(config), Error);
  config["per_layer_config"]["6"]["head_dim"] = 16;
  config["per_layer_config"]["0"] = {{"head_dim", 16}};
  EXPECT_THROW(read(config), Error);
  expect_refused("per_layer_config", Json{{"5", {{"sliding_window", 3}}}}, "a key that is not supported");
  expect_refused("per_layer_config", 3, "'per_layer_config' cannot be used");
}

TEST(LayerHeads, PartsThatAreNotBuiltAreRefusedByName) {
  expect_refused("hidden_size_per_layer_input", 256, "Gemma 4 with per-layer inputs");
  Json config = small();
  config.erase("hidden_size_per_layer_input");
  EXPECT_THROW(read(config), Error) << "the class's default is 256";
  expect_refused("num_kv_shared_layers", 3, "Gemma 4 with layers that share keys and values");
  expect_refused("enable_moe_block", true, "Gemma 4 with experts next to its MLPs");
  expect_refused("use_bidirectional_attention", "all", "Gemma 4 with attention in both directions");
  expect_refused("global_head_dim", 15, "an even global_head_dim");
  expect_refused("num_global_key_value_heads", 3,
                 "num_attention_heads divisible by num_global_key_value_heads");
  expect_refused("sliding_window", nullptr, "'sliding_window', a number");
}

TEST(LayerHeads, AMultimodalModelIsItsTextModel) {
  Json text = small();
  text.erase("architectures");
  const Json config{{"architectures", {"Gemma4ForConditionalGeneration"}},
                    {"model_type", "gemma4"},
                    {"text_config", text},
                    {"vision_config", {{"hidden_size", 16}}},
                    {"audio_config", nullptr},
                    {"boi_token_id", 90}};
  const Architecture a = read(config);
  EXPECT_TRUE(a.multimodal);
  EXPECT_EQ(a.tensor_prefix, "model.language_model.");
  EXPECT_EQ(a.heads_of(5).head_dim, 16);
}

TEST(LayerHeads, CachesHaveRoomForEachShapeOfHeads) {
  const Architecture a = read(small());
  const KvLayout layout(a, DType::bf16, 64);
  // Five layers with windows and two without: groups of one block.
  EXPECT_EQ(layout.page_blocks(), 1);
  EXPECT_EQ(layout.groups(), 7);
  EXPECT_EQ(layout.place(0), 0);
  EXPECT_EQ(layout.place(5), 1);
  EXPECT_EQ(layout.token_bytes(0), 2u * 8 * 2);
  EXPECT_EQ(layout.token_bytes(1), 1u * 16 * 2);
  EXPECT_EQ(layout.page_bytes(), 2u * 64 * (32 + 32));
  const KvLayout narrow(a, DType::e4m3, 64);
  EXPECT_EQ(narrow.scale_bytes(0), 8u);
  EXPECT_EQ(narrow.scale_bytes(1), 4u);
  const KvLayout big(find_shape("gemma-4-31b"), DType::bf16, 64);
  EXPECT_EQ(big.page_blocks(), 10);
  EXPECT_EQ(big.groups(), 6);
  EXPECT_EQ(big.page_bytes(), 2u * 64 * 10 * (16 * 256 + 4 * 512) * 2);
}

TEST(LayerHeads, RanksSplitHeadsOfBothSizes) {
  const Architecture a = read(small());
  EXPECT_NO_THROW(require_splits(a, 2, 7));
  EXPECT_THROW(require_splits(with("num_attention_heads", 6), 4, 1), Error);
}

TEST(LayerHeads, OperationsOfAttentionFollowTheHeadsOfEachLayer) {
  Json config = small();
  const double mixed = flops_per_token(read(config), 1024) - flops_per_token(read(config), 512);
  config["global_head_dim"] = 8;
  const double narrow = flops_per_token(read(config), 1024) - flops_per_token(read(config), 512);
  EXPECT_NEAR(mixed / narrow, 9.0 / 7.0, 1e-9) << "two of seven layers have heads of twice the size";
}

}  // namespace
}  // namespace octet::model::layer_heads_test
