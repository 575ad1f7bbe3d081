#include "octet/model/layout.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "octet/base/error.h"
#include "octet/model/shapes.h"

namespace octet::model::layout_test {
namespace {

Architecture odd_model(bool tied, bool biased) {
  Architecture a;
  a.vocabulary = 101;
  a.hidden = 36;
  a.intermediate = 52;
  a.layers = 3;
  a.heads = {.q_heads = 6, .kv_heads = 2, .head_dim = 10};
  a.tied = tied;
  a.qkv_bias = a.output_bias = a.mlp_bias = biased;
  a.ropes = {{}};
  a.blocks.resize(3);
  return a;
}

TEST(Layout, PartsCoverTheirTensorsAndTensorsStandAligned) {
  for (const bool tied : {false, true}) {
    for (const bool biased : {false, true}) {
      const ParameterLayout layout = build_layout(odd_model(tied, biased));
      ASSERT_EQ(layout.groups.size(), 5u);
      std::set<std::string> names;
      for (const GroupSpec& group : layout.groups) {
        for (const SegmentSpec& segment : group.segments) {
          std::int64_t end = 0;
          for (const TensorSpec& t : segment.tensors) {
            EXPECT_EQ(t.offset % kTensorAlignment, 0) << t.name;
            EXPECT_GE(t.offset, end);
            EXPECT_LT(t.offset - end, kTensorAlignment);
            end = t.offset + t.count();
            std::int64_t covered = 0;
            for (const NamedPart& part : t.parts) {
              EXPECT_EQ(part.begin, covered);
              std::int64_t elements = 1;
              for (const std::int64_t extent : part.shape) elements *= extent;
              EXPECT_EQ(part.count, elements) << part.name;
              covered += part.count;
              EXPECT_TRUE(names.insert(part.name).second) << part.name;
            }
            EXPECT_EQ(covered, t.count()) << t.name;
            EXPECT_EQ(t.decay, segment.kind == ParameterKind::matrix);
            EXPECT_EQ(t.fp8, segment.fp8);
          }
          EXPECT_EQ(segment.used, end);
          for (const int world : {1, 2, 3, 7, 64}) {
            const std::int64_t padded = padded_count(segment, world);
            EXPECT_GE(padded, segment.used);
            EXPECT_EQ(padded % (world * kTensorAlignment), 0);
            EXPECT_LT(padded - segment.used, world * kTensorAlignment);
          }
        }
      }
      EXPECT_EQ(names.contains("lm_head.weight"), !tied);
      EXPECT_EQ(names.contains("model.layers.2.mlp.down_proj.bias"), biased);
      EXPECT_EQ(names.size(), 3u * (biased ? 16 : 9) + (tied ? 2 : 3));
    }
  }
}

// Hugging Face's parameter counts of these models; for Gemma 3, of the text model.
TEST(Layout, ShapesWithNamesHaveTheParametersOfTheirModels) {
  const std::map<std::string, std::int64_t> known{
      {"llama-2-7b", 6738415616},       {"llama-2-13b", 13015864320},
      {"llama-2-70b", 68976648192},     {"llama-3-8b", 8030261248},
      {"llama-3-70b", 70553706496},     {"llama-3.1-8b", 8030261248},
      {"llama-3.1-70b", 70553706496},   {"llama-3.1-405b", 405853388800},
      {"llama-3.2-1b", 1235814400},     {"llama-3.2-3b", 3212749824},
      {"tinyllama-1.1b", 1100048384},   {"smollm2-135m", 134515008},
      {"smollm2-360m", 361821120},      {"smollm2-1.7b", 1711376384},
      {"mistral-7b-v0.1", 7241732096},  {"mistral-7b-v0.2", 7241732096},
      {"mistral-7b", 7248023552},       {"mistral-nemo-12b", 12247782400},
      {"qwen2.5-0.5b", 494032768},      {"qwen2.5-1.5b", 1543714304},
      {"qwen2.5-3b", 3085938688},       {"qwen2.5-7b", 7615616512},
      {"qwen2.5-14b", 14770033664},     {"qwen2.5-32b", 32763876352},
      {"qwen2.5-72b", 72706203648},     {"r1-distill-qwen-1.5b", 1777088000},
      {"qwen3-0.6b", 596049920},        {"qwen3-1.7b", 1720574976},
      {"qwen3-4b", 4022468096},         {"qwen3-8b", 8190735360},
      {"qwen3-14b", 14768307200},       {"qwen3-32b", 32762123264},
      {"qwen3-30b-a3b", 30532122624},   {"gemma-2-2b", 2614341888},
      {"gemma-2-9b", 9241705984},       {"gemma-2-27b", 27227128320},
      {"gemma-3-1b", 999885952},        {"gemma-3-270m", 268098176},
      {"gemma-3-27b", 27009346304},     {"gemma-4-31b", 30697345340},
      {"mixtral-8x7b", 46702792704},    {"olmoe-1b-7b", 6919161856},
      {"gpt-oss-20b", 20914757184},     {"gpt-oss-120b", 116829156672},
      {"gemma-2b", 2506172416},         {"gemma-7b", 8537680896},
      {"phi-3-mini", 3821079552},       {"phi-3-medium", 13960238080},
      {"phi-4", 14659507200},           {"smollm3-3b", 3075098624},
      {"olmo-2-1b", 1484916736},        {"seed-oss-36b", 36151104512},
      {"granite-3.3-2b", 2533539840},   {"granite-3.3-8b", 8170864640},
      {"olmo-2-7b", 7298617344},        {"olmo-2-13b", 13716198400},
      {"olmo-2-32b", 32234279936},      {"olmo-3-7b", 7298011136},
      {"olmo-3-32b", 32233522176},      {"exaone-4.0-1.2b", 1279391488},
      {"phi-3.5-mini", 3821079552},     {"phi-4-mini", 3836021760},
      {"ernie-4.5-0.3b", 360748032},    {"glm-4-9b-0414", 9400279040},
      {"glm-4-32b-0414", 32566081536},  {"command-a", 111057580032},
      {"starcoder2-3b", 3030371328},    {"starcoder2-7b", 7173923840},
      {"starcoder2-15b", 15957889024},  {"deepseek-v3", 671026419200},
      {"deepseek-v2-lite", 15706484224}};
  for (const auto& [name, parameters] : known)
    EXPECT_EQ(build_layout(find_shape(name)).parameter_count(), parameters) << name;
  for (const std::string& name : shape_names())
    EXPECT_GT(build_layout(find_shape(name)).parameter_count(), 0) << name;
}

TEST(Shapes, AreFoundByTheNamesOfModelsOnTheHub) {
  for (const auto& [name, shape] : std::map<std::string, std::string>{
           {"meta-llama/Llama-3.2-1B-Instruct", "llama-3.2-1b"},
           {"meta-llama/Meta-Llama-3-8B-Instruct", "llama-3-8b"},
           {"meta-llama/Llama-3.1-8B", "llama-3.1-8b"},
           {"meta-llama/Llama-3.3-70B-Instruct", "llama-3.1-70b"},
           {"meta-llama/Llama-2-7b-chat-hf", "llama-2-7b"},
           {"unsloth/Llama-3.2-3B-Instruct-bnb-4bit", "llama-3.2-3b"},
           {"Qwen/Qwen2-7B-Instruct", "qwen2.5-7b"},
           {"Qwen/Qwen2.5-Coder-14B-Instruct", "qwen2.5-14b"},
           {"Qwen/Qwen2.5-0.5B", "qwen2.5-0.5b"},
           {"Qwen/Qwen3-8B", "qwen3-8b"},
           {"Qwen/Qwen3-8B-Base", "qwen3-8b"},
           {"Qwen/Qwen3-4B-Instruct-2507", "qwen3-4b"},
           {"Qwen/Qwen3-30B-A3B-Thinking-2507", "qwen3-30b-a3b"},
           {"Qwen/Qwen3-Next-80B-A3B-Instruct", "qwen3-next-80b-a3b"},
           {"Qwen/Qwen3.5-35B-A3B", "qwen3.5-35b-a3b"},
           {"Qwen/Qwen3.5-9B-Base", "qwen3.5-9b"},
           {"deepseek-ai/DeepSeek-R1-Distill-Qwen-7B", "qwen2.5-7b"},
           {"deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", "r1-distill-qwen-1.5b"},
           {"deepseek-ai/DeepSeek-R1-Distill-Llama-8B", "llama-3.1-8b"},
           {"deepseek-ai/DeepSeek-R1", "deepseek-v3"},
           {"deepseek-ai/DeepSeek-V3-0324", "deepseek-v3"},
           {"deepseek-ai/DeepSeek-V3-Base", "deepseek-v3"},
           {"deepseek-ai/DeepSeek-V2-Lite-Chat", "deepseek-v2-lite"},
           {"moonshotai/Moonlight-16B-A3B-Instruct", "moonlight-16b-a3b"},
           {"moonshotai/Kimi-K2-Instruct", "kimi-k2"},
           {"zai-org/GLM-4.7-Flash", "glm-4.7-flash"},
           {"mistralai/Mistral-7B-v0.1", "mistral-7b-v0.1"},
           {"mistralai/Mistral-7B-Instruct-v0.3", "mistral-7b"},
           {"mistralai/Mistral-Nemo-Instruct-2407", "mistral-nemo-12b"},
           {"mistralai/Mistral-Small-24B-Base-2501", "mistral-small-24b"},
           {"mistralai/Mixtral-8x7B-Instruct-v0.1", "mixtral-8x7b"},
           {"allenai/OLMoE-1B-7B-0924-Instruct", "olmoe-1b-7b"},
           {"zai-org/GLM-4.5-Air", "glm-4.5-air"},
           {"openai/gpt-oss-20b", "gpt-oss-20b"},
           {"zai-org/GLM-4-9B-0414", "glm-4-9b-0414"},
           {"zai-org/GLM-Z1-32B-0414", "glm-4-32b-0414"},
           {"baidu/ERNIE-4.5-0.3B-PT", "ernie-4.5-0.3b"},
           {"baidu/ERNIE-4.5-0.3B-Base-PT", "ernie-4.5-0.3b"},
           {"bigcode/starcoder2-15b-instruct-v0.1", "starcoder2-15b"},
           {"CohereLabs/c4ai-command-r7b-12-2024", "command-r7b"},
           {"swiss-ai/Apertus-8B-Instruct-2509", "apertus-8b"},
           {"google/gemma-2-2b-it", "gemma-2-2b"},
           {"google/gemma-1.1-2b-it", "gemma-2b"},
           {"microsoft/Phi-3-mini-4k-instruct", "phi-3-mini"},
           {"microsoft/phi-4", "phi-4"},
           {"HuggingFaceTB/SmolLM3-3B", "smollm3-3b"},
           {"allenai/OLMo-2-1124-7B-Instruct", "olmo-2-7b"},
           {"allenai/Olmo-3-1025-7B", "olmo-3-7b"},
           {"ibm-granite/granite-3.3-8b-instruct", "granite-3.3-8b"},
           {"ByteDance-Seed/Seed-OSS-36B-Instruct", "seed-oss-36b"},
           {"google/gemma-3-27b-it", "gemma-3-27b"},
           {"google/gemma-4-31B-it", "gemma-4-31b"},
           {"google/gemma-4-E4B-it", ""},
           {"google/gemma-4-26B-A4B-it", ""},
           {"HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m"},
           {"TinyLlama/TinyLlama-1.1B-Chat-v1.0", "tinyllama-1.1b"},
           {"models/Llama-3.2-1B", "llama-3.2-1b"},
           {"Llama-3.1-8B-Instruct", "llama-3.1-8b"},
           {"google/gemma-7b-it", "gemma-7b"},
           {"ibm-granite/granite-3.3-2b-instruct", "granite-3.3-2b"},
           {"ibm-granite/granite-3.3-8b-base", "granite-3.3-8b"},
           {"HuggingFaceTB/SmolLM3-3B-Base", "smollm3-3b"},
           {"allenai/OLMo-2-0425-1B-Instruct", "olmo-2-1b"},
           {"allenai/OLMo-2-1124-7B", "olmo-2-7b"},
           {"allenai/OLMo-2-1124-13B-Instruct", "olmo-2-13b"},
           {"allenai/OLMo-2-0325-32B-Instruct", "olmo-2-32b"},
           {"allenai/Olmo-3-7B-Instruct", "olmo-3-7b"},
           {"allenai/Olmo-3-7B-Think", "olmo-3-7b"},
           {"allenai/Olmo-3-1125-32B", "olmo-3-32b"},
           {"allenai/Olmo-3-32B-Think", "olmo-3-32b"},
           {"LGAI-EXAONE/EXAONE-4.0-1.2B", "exaone-4.0-1.2b"},
           {"LGAI-EXAONE/EXAONE-4.0-32B", "exaone-4.0-32b"},
           {"microsoft/Phi-3-mini-128k-instruct", "phi-3.5-mini"},
           {"microsoft/Phi-3.5-mini-instruct", "phi-3.5-mini"},
           {"microsoft/Phi-4-mini-instruct", "phi-4-mini"},
           {"microsoft/Phi-4-reasoning", "phi-4"},
           {"microsoft/Phi-3-medium-4k-instruct", "phi-3-medium"},
           {"zai-org/GLM-4-32B-0414", "glm-4-32b-0414"},
           {"zai-org/GLM-Z1-9B-0414", "glm-4-9b-0414"},
           {"CohereLabs/c4ai-command-a-03-2025", "command-a"},
           {"bigcode/starcoder2-3b", "starcoder2-3b"},
           {"swiss-ai/Apertus-70B-2509", "apertus-70b"},
           {"allenai/Olmo-3.1-32B-Instruct-SFT", "olmo-3-32b"},
           {"allenai/OLMo-2-1124-7B-DPO", "olmo-2-7b"},
           {"LGAI-EXAONE/EXAONE-4.0.1-32B", "exaone-4.0-32b"},
           {"zai-org/GLM-4-32B-Base-0414", "glm-4-32b-0414"},
           {"google/codegemma-7b-it", "gemma-7b"},
           {"microsoft/Phi-4-reasoning-plus", "phi-4"},
           {"ByteDance-Seed/Seed-OSS-36B-Base-woSyn", "seed-oss-36b"},
           // Other models, other weights, and paths.
           {"Qwen/Qwen2.5-VL-7B-Instruct", ""},
           {"meta-llama/Llama-3.2-11B-Vision", ""},
           {"Qwen/Qwen2.5-7B-Instruct-AWQ", ""},
           {"deepseek-ai/DeepSeek-R1-Zero", ""},
           {"acme/secret-7b", ""},
           {"acme/tiny", ""},
           {"/models/Llama-3.1-8B", ""},
           {"./Llama-3.1-8B", ""},
           {"~/Llama-3.1-8B", ""},
           {"a/b/Llama-3.1-8B", ""},
           {"", ""}}) {
    EXPECT_EQ(shape_of_model(name), shape) << name;
    if (shape.empty()) {
      EXPECT_THROW(find_shape(name), Error) << name;
      continue;
    }
    EXPECT_EQ(build_layout(find_shape(name)).parameter_count(),
              build_layout(find_shape(shape)).parameter_count())
        << name;
  }
  EXPECT_EQ(find_shape("unsloth/Qwen3-8B-unsloth-bnb-4bit").stored.format, StoredWeights::Format::nf4);
  EXPECT_EQ(find_shape("Qwen/Qwen3-8B-FP8").stored.format, StoredWeights::Format::fp8_blocks);
  for (const auto& [path, mend] : std::map<std::string, std::string>{
           {"/models/Llama-3.1-8B-Instruct", "its built-in shape: llama-3.1-8b"},
           {"lama-3.1-8b", "did you mean 'llama-3.1-8b'?"}}) {
    try {
      find_shape(path);
      ADD_FAILURE() << path;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ExitCode::usage);
      EXPECT_NE(e.problem().fix.find(mend), std::string::npos) << e.what();
    }
  }
}

TEST(Layout, CountsTheParametersAndOperationsOfLlama31) {
  Architecture a;
  a.vocabulary = 128256;
  a.hidden = 4096;
  a.intermediate = 14336;
  a.layers = 32;
  a.heads = {.q_heads = 32, .kv_heads = 8, .head_dim = 128};
  EXPECT_EQ(build_layout(a).parameter_count(), 8030261248);
  // Six operations for each parameter except the input embedding's, and causal attention over 4,096 tokens.
  EXPECT_EQ(flops_per_token(a, 4096), 6.0 * (8030261248 - 128256 * 4096) + 6.0 * 32 * 4096 * 4096);
  a.tied = true;  // one table, which the head's GEMM uses
  EXPECT_EQ(flops_per_token(a, 4096), 6.0 * (8030261248 - 128256 * 4096) + 6.0 * 32 * 4096 * 4096);
}

/// Computes elements [begin, begin + count) of a fresh tensor.
void initialise(const TensorSpec& tensor, std::uint64_t seed, std::int64_t begin, std::int64_t count,
                float* out) {
  const std::unique_ptr<Device> device = make_cpu_device();
  const std::unique_ptr<Stream> stream = device->make_stream({.name = "test"});
  model::initialise(*stream, tensor, {.seed = seed, .begin = begin, .count = count, .out = out});
}

// Sinks of attention and biases of routers begin as the matrices do.
TEST(Layout, RandomVectorsHaveTheInitializerRangeOfTheModel) {
  Architecture a = odd_model(false, false);
  a.attention_sinks = true;
  a.experts = {.count = 4, .taken = 2, .width = 20, .biases = true};
  for (BlockShape& block : a.blocks) block.mixes_experts = true;
  a.initializer_range = 0.006;
  int vectors = 0;
  for (const GroupSpec& group : build_layout(a).groups) {
    for (const SegmentSpec& segment : group.segments) {
      for (const TensorSpec& t : segment.tensors) {
        if (t.init != InitRule::normal || t.cols != 1) continue;
        ++vectors;
        EXPECT_FLOAT_EQ(t.init_std, 0.006f) << t.name;
      }
    }
  }
  EXPECT_EQ(vectors, 6) << "sinks and a router's bias in each of three blocks";
}

TEST(Layout, FreshWeightsDependOnNameAndElementAlone) {
  const Architecture a = odd_model(false, true);
  const ParameterLayout layout = build_layout(a);
  const TensorSpec& qkv = layout.groups[1].segments[kBlockMatrices].tensors[0];
  std::vector<float> whole(static_cast<std::size_t>(qkv.count()));
  initialise(qkv, 7, 0, qkv.count(), whole.data());
  for (std::int64_t begin = 0; begin < qkv.count(); begin += 641) {
    const std::int64_t count = std::min<std::int64_t>(641, qkv.count() - begin);
    std::vector<float> piece(static_cast<std::size_t>(count));
    initialise(qkv, 7, begin, count, piece.data());
    for (std::int64_t i = 0; i < count; ++i) {
      ASSERT_EQ(piece[static_cast<std::size_t>(i)], whole[static_cast<std::size_t>(begin + i)]);
    }
  }
  double sum = 0, squares = 0;
  for (const float w : whole) sum += w, squares += static_cast<double>(w) * w;
  const auto n = static_cast<double>(whole.size());
  EXPECT_NEAR(std::sqrt(squares / n), 0.02, 0.02 * 4 / std::sqrt(2 * n));
  EXPECT_NEAR(sum / n, 0.0, 0.02 * 4 / std::sqrt(n));
  // Another seed, and another tensor, give other numbers.
  std::vector<float> other(whole.size());
  initialise(qkv, 8, 0, qkv.count(), other.data());
  EXPECT_NE(other[0], whole[0]);
  initialise(layout.groups[2].segments[kBlockMatrices].tensors[0], 7, 0, qkv.count(), other.data());
  EXPECT_NE(other[0], whole[0]);
  EXPECT_NE(whole[0], whole[static_cast<std::size_t>(qkv.parts[1].begin)]);
  // A shard has the numbers of the whole tensor.
  TensorSpec cut = qkv;
  const std::int64_t rows = qkv.parts[1].count / qkv.cols, width = qkv.cols / 2 + 1;
  cut.parts = {qkv.parts[1]};
  cut.parts[0].begin = 0;
  cut.parts[0].cut = PartCut{.rows = {1, rows - 1, rows}, .cols = {qkv.cols - width, width, qkv.cols}};
  cut.rows = rows - 1, cut.cols = width, cut.parts[0].count = cut.count();
  for (const std::int64_t first : {std::int64_t{0}, width + 3}) {
    std::vector<float> piece(static_cast<std::size_t>(cut.count() - first));
    initialise(cut, 7, first, cut.count() - first, piece.data());
    for (std::int64_t i = first; i < cut.count(); ++i) {
      const std::int64_t at = qkv.parts[1].begin + (1 + i / width) * qkv.cols + qkv.cols - width + i % width;
      ASSERT_EQ(piece[static_cast<std::size_t>(i - first)], whole[static_cast<std::size_t>(at)]) << i;
    }
  }
  // Norms start at one, biases at zero.
  for (const TensorSpec& t : layout.groups[1].segments[kBlockVectors].tensors) {
    std::vector<float> values(static_cast<std::size_t>(t.count()), -1.0f);
    initialise(t, 7, 0, t.count(), values.data());
    const float expected = t.name.ends_with("norm") ? 1.0f : 0.0f;
    for (const float v : values) ASSERT_EQ(v, expected) << t.name;
  }
}

}  // namespace
}  // namespace octet::model::layout_test
