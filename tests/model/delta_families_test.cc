// config.json of families with delta rules (linear attention): published files, values that cannot be,
// tensors, caches of decoding.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/device/device.h"
#include "octet/model/architecture.h"
#include "octet/model/kv_cache.h"
#include "octet/model/layout.h"
#include "octet/model/work.h"

namespace octet::model::delta_families_test {
namespace {

constexpr const char* kSizes = R"({"attention_dropout": 0.0, "hidden_act": "silu", "initializer_range": 0.02,
  "full_attention_interval": 4, "head_dim": 256, "hidden_size": 2048, "linear_conv_kernel_dim": 4,
  "linear_key_head_dim": 128, "linear_num_key_heads": 16, "linear_num_value_heads": 32,
  "linear_value_head_dim": 128, "max_position_embeddings": 262144, "num_attention_heads": 16,
  "num_hidden_layers": 8, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "use_cache": true})";

Json qwen3_next() {
  Json config = parse_json(kSizes, "test");
  config.update(parse_json(R"({"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next",
    "bos_token_id": 151643, "eos_token_id": 151645, "decoder_sparse_step": 1, "intermediate_size": 5120,
    "mlp_only_layers": [], "moe_intermediate_size": 512, "norm_topk_prob": true, "num_experts": 512,
    "num_experts_per_tok": 10, "output_router_logits": false, "partial_rotary_factor": 0.25,
    "rope_scaling": null, "rope_theta": 10000000, "router_aux_loss_coef": 0.001,
    "shared_expert_intermediate_size": 512, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
    "use_sliding_window": false, "vocab_size": 151936})",
                           "test"));
  return config;
}

/// The whole file of a dense model with images.
Json qwen3_5() {
  Json text = parse_json(kSizes, "test");
  text.update(parse_json(R"({"attention_bias": false, "attn_output_gate": true, "bos_token_id": null,
    "dtype": "bfloat16", "eos_token_id": 248044, "intermediate_size": 6144, "mamba_ssm_dtype": "float32",
    "mlp_only_layers": [], "model_type": "qwen3_5_text", "mtp_num_hidden_layers": 1,
    "mtp_use_dedicated_embeddings": false, "pad_token_id": null, "partial_rotary_factor": 0.25,
    "rope_parameters": {"mrope_interleaved": true, "mrope_section": [11, 11, 10], "partial_rotary_factor": 0.25,
                        "rope_theta": 10000000, "rope_type": "default"},
    "layer_types": ["linear_attention", "linear_attention", "linear_attention", "full_attention",
                    "linear_attention", "linear_attention", "linear_attention", "full_attention"],
    "tie_word_embeddings": true, "vocab_size": 248320})",
                         "test"));
  Json config = parse_json(R"({"architectures": ["Qwen3_5ForConditionalGeneration"], "model_type": "qwen3_5",
    "image_token_id": 248056, "video_token_id": 248057, "vision_end_token_id": 248054,
    "vision_start_token_id": 248053, "tie_word_embeddings": true, "transformers_version": "5.0.0"})",
                           "test");
  config["text_config"] = text;
  config["vision_config"] = {{"depth", 27}, {"model_type", "qwen3_5"}};
  return config;
}

Json with(Json config, const Json& keys) {
  config.update(keys);
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

TEST(DeltaFamilies, PublishedFilesAreRead) {
  for (const Json& config : {qwen3_next(), qwen3_5()}) {
    const Architecture a = read(config);
    EXPECT_TRUE(a.output_gate && a.one_plus_weight && a.qk_norm && a.further_modules);
    EXPECT_EQ(a.rotated(), 64);
    EXPECT_EQ(a.ropes.at(0).theta, 1e7);
    EXPECT_EQ(a.delta.heads.value_heads, 32);
    for (std::size_t i = 0; i < 8; ++i) EXPECT_EQ(a.blocks[i].delta_rule, i % 4 != 3) << i;
  }
  const Architecture next = read(qwen3_next());
  EXPECT_TRUE(next.delta.grouped && next.experts.normalised);
  EXPECT_EQ(next.experts.shared, 512);
  const Architecture dense = read(qwen3_5());
  EXPECT_FALSE(dense.delta.grouped);
  EXPECT_TRUE(dense.tied && dense.multimodal);
  EXPECT_EQ(dense.tensor_prefix, "model.language_model.");
}

TEST(DeltaFamilies, MissingKeysHaveTheDefaultsOfTheirClasses) {
  const auto bare = [](const char* type, const Json& more) {
    return read(with({{"model_type", type}}, more));
  };
  const Json sizes{
      {"vocab_size", 100}, {"hidden_size", 64}, {"num_hidden_layers", 4}, {"num_attention_heads", 2}};
  const Architecture next = bare("qwen3_next", with(sizes, {{"num_experts", 8}, {"num_experts_per_tok", 2}}));
  EXPECT_EQ(next.heads.head_dim, 256);
  EXPECT_EQ(next.heads.kv_heads, 2);
  EXPECT_EQ(next.rotated(), 64);
  EXPECT_EQ(next.experts.width, 512);
  EXPECT_TRUE(next.experts.normalised);
  const Architecture text = bare("qwen3_5_moe_text", Json::object());
  EXPECT_EQ(text.layers, 40);
  EXPECT_EQ(text.experts.count, 256);
  EXPECT_EQ(text.experts.taken, 8);
  EXPECT_EQ(std::ranges::count_if(text.blocks, &BlockShape::delta_rule), 30);
  EXPECT_EQ(bare("qwen3_5_text", Json::object()).intermediate, 12288);
}

TEST(DeltaFamilies, ValuesThatCannotBeAreRefusedByName) {
  struct Row {
    Json keys;
    const char* said;
  };
  const Row rows[] = {{{{"linear_conv_kernel_dim", 3}}, "linear_conv_kernel_dim: 4"},
                      {{{"linear_num_value_heads", 24}}, "divisible by linear_num_key_heads"},
                      {{{"linear_key_head_dim", 12}}, "multiples of 8"},
                      {{{"linear_value_head_dim", 512}}, "at most 256"},
                      {{{"linear_num_key_heads", 0}}, "linear_num_key_heads"},
                      {{{"attn_output_gate", false}}, "attn_output_gate: true"},
                      {{{"output_gate_type", "sigmoid"}}, "output_gate_type: swish"},
                      {{{"hidden_act", "gelu_pytorch_tanh"}}, "hidden_act: silu"},
                      {{{"full_attention_interval", 9}}, "only linear attention"},
                      {{{"layer_types", Json::array({"sliding_attention"})}}, "'layer_types'"},
                      {{{"sliding_window", 64}}, "sliding window"}};
  for (const Row& row : rows) {
    const std::string said = refusal(with(qwen3_next(), row.keys));
    EXPECT_NE(said.find(row.said), std::string::npos) << row.keys << "\n" << said;
  }
  std::vector<std::string> types(8, "full_attention");
  types[2] = "sliding_attention";
  const std::string said = refusal(with(qwen3_next(), {{"layer_types", types}}));
  EXPECT_NE(said.find("full_attention or linear_attention"), std::string::npos) << said;
  // Other families have no such blocks.
  Json other =
      parse_json(R"({"model_type": "qwen3", "vocab_size": 64, "hidden_size": 64, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 2, "layer_types": ["linear_attention"]})",
                 "test");
  EXPECT_NE(refusal(other).find("full_attention or sliding_attention"), std::string::npos);
}

TEST(DeltaFamilies, BlocksWithoutLinearAttentionHaveNoDeltaRule) {
  const Architecture a = read(with(qwen3_next(), {{"full_attention_interval", 1}}));
  EXPECT_FALSE(a.has_delta_rule());
  EXPECT_TRUE(a.output_gate);
}

const TensorSpec& tensor_of(const ParameterLayout& layout, std::size_t group, const std::string& name) {
  for (const SegmentSpec& segment : layout.groups.at(group).segments) {
    for (const TensorSpec& tensor : segment.tensors) {
      if (tensor.name == name) return tensor;
    }
  }
  throw std::logic_error("no tensor " + name);
}

TEST(DeltaFamilies, TensorsHaveTheNamesAndShapesOfTheirFiles) {
  const ParameterLayout grouped = build_layout(read(qwen3_next()));
  const TensorSpec& in = tensor_of(grouped, 1, "layers.0.delta_in");
  ASSERT_EQ(in.parts.size(), 2u);
  EXPECT_EQ(in.parts[0].name, "model.layers.0.linear_attn.in_proj_qkvz.weight");
  EXPECT_EQ(in.parts[0].shape, (std::vector<std::int64_t>{12288, 2048}));
  EXPECT_EQ(in.parts[1].shape, (std::vector<std::int64_t>{64, 2048}));
  const TensorSpec& taps = tensor_of(grouped, 1, "layers.0.delta_taps");
  EXPECT_EQ(taps.parts.at(0).shape, (std::vector<std::int64_t>{8192, 1, 4}));
  EXPECT_TRUE(taps.decay);
  EXPECT_FALSE(tensor_of(grouped, 1, "layers.0.delta_a_log").decay);
  const TensorSpec& qkv = tensor_of(grouped, 4, "layers.3.qkv");
  EXPECT_EQ(qkv.parts.at(0).shape, (std::vector<std::int64_t>{2 * 16 * 256, 2048})) << "queries and gates";
  const ParameterLayout apart = build_layout(read(qwen3_5()));
  const TensorSpec& four = tensor_of(apart, 1, "layers.0.delta_in");
  ASSERT_EQ(four.parts.size(), 4u);
  EXPECT_EQ(four.parts[3].name, "model.language_model.layers.0.linear_attn.in_proj_a.weight");
}

TEST(DeltaFamilies, InitialDecaysAreInTheRangeOfTransformers) {
  for (const Json& config : {qwen3_next(), qwen3_5()}) {
    const Architecture a = read(config);
    const ParameterLayout layout = build_layout(a);
    const TensorSpec& a_log = tensor_of(layout, 1, "layers.0.delta_a_log");
    const std::unique_ptr<Device> device = make_cpu_device({.threads = 1});
    const std::unique_ptr<Stream> stream = device->make_stream({.name = "compute"});
    std::vector<float> values(32);
    initialise(*stream, a_log, {.seed = 3, .count = 32, .out = values.data()});
    stream->synchronize();
    double sum = 0;
    for (const float value : values) {
      const double decay = std::exp(static_cast<double>(value));
      EXPECT_GT(decay, a.delta.least_decay);
      EXPECT_LT(decay, 16.001);
      sum += decay;
    }
    EXPECT_NEAR(sum / 32, 8, 3);
    // A part of the vector has the values of the whole.
    std::vector<float> part(5);
    initialise(*stream, a_log, {.seed = 3, .begin = 7, .count = 5, .out = part.data()});
    stream->synchronize();
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.begin() + 7));
  }
}

TEST(DeltaFamilies, RanksDoNotSplitDeltaRules) {
  const Architecture a = read(qwen3_next());
  EXPECT_NO_THROW(require_splits(a, 1, 8));
  try {
    require_splits(a, 2, 1);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("delta rules"), std::string::npos);
  }
}

TEST(DeltaFamilies, OnlyBlocksWithAttentionHavePages) {
  Architecture a = read(qwen3_next());
  const KvLayout layout(a, DType::bf16, 64);
  EXPECT_EQ(layout.groups(), 1);
  EXPECT_EQ(layout.page_blocks(), 2);
  EXPECT_EQ(layout.group(0), KvLayout::kNoGroup);
  EXPECT_EQ(layout.place(7), 1);
  const auto bytes = [&](const std::string& name) {
    const std::unique_ptr<Device> dry = make_dry_device();
    Arena arena(*dry);
    const KvCache cache(arena, a, layout, 3, 256, 12);
    std::size_t sum = 0;
    for (const Reservation& r : arena.reservations()) sum += r.name == name ? r.bytes : 0;
    return sum;
  };
  EXPECT_EQ(bytes("KV cache"), 2u * 2 * 12 * 64 * 2 * 256 * 2);
  EXPECT_EQ(bytes("states of delta rules"), 6u * 3 * (32 * 128 * 128 + 3 * 8192) * 4);
  // A stage may have no attention at all.
  a.share = {.stage = 0, .stages = 4};
  EXPECT_EQ(KvLayout(a, DType::bf16, 64).own_blocks(), 0);
  EXPECT_EQ(bytes("states of delta rules"), 2u * 3 * (32 * 128 * 128 + 3 * 8192) * 4);
}

// A delta rule reads no earlier tokens, so its part of the work does not grow with the length.
TEST(DeltaFamilies, WorkGrowsWithTheLengthOnlyInAttention) {
  const Architecture a = read(qwen3_next());
  const double growth = flops_per_token(a, 2000) - flops_per_token(a, 1000);
  EXPECT_NEAR(growth, 2 * 6.0 * 1000 * 16 * 256, 1);
  const auto attention = [&](std::int64_t length) {
    double flops = 0;
    for (const Operation& o : operations(a, 4096, length))
      flops += o.kind == OperationKind::attention && !o.backward ? o.flops : 0;
    return flops;
  };
  EXPECT_NEAR(attention(4096) - attention(2048), 2 * 2.0 * 4096 * 2048 * 16 * 256, 1e6);
}

}  // namespace
}  // namespace octet::model::delta_families_test
