// Shapes of well-known models, as their config.json has them.
#include "octet/model/shapes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::model {

// Names of models on the Hugging Face hub with built-in shapes.

struct HubName {
  std::string shape;   ///< "llama-3.2-1b"; "": unknown model
  std::string stored;  ///< quantization_config of the published weights; "": not quantised
};

/// Whether a text has the form of a name on the hub, with or without an owner: "Qwen/Qwen3-8B". Returns false
/// for paths like "./model", "~/model" and "a/b/c".
bool is_name_on_hub(const std::string& text);

/// Returns the built-in shape of a model by its name without the owner: "Llama-3.2-1B-Instruct".
HubName name_on_hub(const std::string& name);

namespace {

/// Beginnings of names on the hub, and of the shapes that these models have. They are replaced in this order.
constexpr auto kBeginnings = std::to_array<std::pair<std::string_view, std::string_view>>({
    {"meta-llama-", "llama-"},
    {"hermes-3-llama-", "llama-"},
    {"deepseek-r1-distill-llama-", "llama-3.1-"},
    {"llama-3.3-70b", "llama-3.1-70b"},
    {"deepseek-r1-distill-qwen-1.5b", "r1-distill-qwen-1.5b"},
    {"deepseek-r1-distill-qwen-", "qwen2.5-"},
    {"deepseek-r1-0528-qwen3-", "qwen3-"},
    {"qwen2.5-coder-", "qwen2.5-"},
    {"qwen2.5-math-", "qwen2.5-"},
    {"qwen2-math-", "qwen2.5-"},
    {"qwen2-", "qwen2.5-"},
    {"qwq-32b", "qwen2.5-32b"},
    {"qwen3-coder-30b", "qwen3-30b"},
    {"mistral-7b-instruct-v", "mistral-7b-v"},
    {"mistral-7b-v0.3", "mistral-7b"},
    {"mistral-nemo-base", "mistral-nemo-12b"},
    {"mistral-nemo-instruct", "mistral-nemo-12b"},
    {"tinyllama_v1.1", "tinyllama-1.1b"},
    {"yi-6b", "yi-1.5-6b"},
    {"yi-9b", "yi-1.5-9b"},
    {"yi-34b", "yi-1.5-34b"},
    {"gemma-1.1-", "gemma-"},
    {"olmo-2-0425-", "olmo-2-"},
    {"olmo-2-1124-", "olmo-2-"},
    {"olmo-2-0325-", "olmo-2-"},
    {"olmo-3-1025-", "olmo-3-"},
    {"olmo-3-1125-", "olmo-3-"},
    {"phi-3-mini-4k", "phi-3-mini"},
    {"phi-3-medium-4k", "phi-3-medium"},
});

/// Endings that do not change a shape.
constexpr auto kEndings = std::to_array<std::string_view>({
    "-instruct",
    "-it",
    "-chat",
    "-base",
    "-hf",
    "-pt",
    "-thinking",
    "-preview",
    "-coder",
    "-0125",
    "-0924",
    "-2407",
    "-2501",
    "-2507",
    "-v0.1",
    "-v1.0",
    "-v0.6",
    "-intermediate-step-1431k-3t",
});

struct Quantised {
  std::string_view ending, family, stored;
};

constexpr std::string_view kNf4 =
    R"({"quant_method": "bitsandbytes", "load_in_4bit": true, "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": true})";

constexpr auto kQuantised = std::to_array<Quantised>({
    {"-unsloth-bnb-4bit", "", kNf4},
    {"-bnb-4bit", "", kNf4},
    {"-fp8", "qwen3-", R"({"quant_method": "fp8", "weight_block_size": [128, 128]})"},
});

bool is_shape(const std::string& name) {
  const std::vector<std::string> names = shape_names();
  return std::ranges::find(names, name) != names.end();
}

}  // namespace

bool is_name_on_hub(const std::string& text) {
  if (text.empty() || text.front() == '.' || text.front() == '/' || text.front() == '~') return false;
  return std::ranges::count(text, '/') <= 1 && text.back() != '/';
}

HubName name_on_hub(const std::string& name) {
  HubName found;
  std::string word = name;
  for (char& c : word) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const auto& [from, to] : kBeginnings) {
    if (word.starts_with(from)) word = std::string(to) + word.substr(from.size());
  }
  for (const Quantised& format : kQuantised) {
    if (!found.stored.empty() || !word.ends_with(format.ending) || !word.starts_with(format.family)) continue;
    word.resize(word.size() - format.ending.size());
    found.stored = format.stored;
  }
  while (!is_shape(word)) {
    const auto ending =
        std::ranges::find_if(kEndings, [&](const std::string_view each) { return word.ends_with(each); });
    if (ending == kEndings.end()) return {};
    word.resize(word.size() - ending->size());
  }
  found.shape = word == "tiny" ? "" : word;
  return found;
}

namespace {

Json llama3_scaling(double factor) {
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

/// Keys that the shapes of a family share.
Json family_keys(const std::string& family) {
  Json keys{{"model_type", "llama"},
            {"hidden_act", "silu"},
            {"max_position_embeddings", 131072},
            {"rms_norm_eps", 1e-5},
            {"rope_theta", 500000.0}};
  if (family == "llama2") {
    keys.update({{"max_position_embeddings", 4096}, {"rope_theta", 10000.0}});
  } else if (family == "llama3") {
    keys["max_position_embeddings"] = 8192;
  } else if (family == "llama3.1") {
    keys["rope_scaling"] = llama3_scaling(8.0);
  } else if (family == "llama3.2") {
    keys["rope_scaling"] = llama3_scaling(32.0);
  } else if (family == "smollm2") {
    keys.update({{"max_position_embeddings", 8192}, {"rope_theta", 100000.0}});
  } else if (family == "yi") {
    keys.update({{"max_position_embeddings", 4096}, {"rope_theta", 5000000.0}, {"rms_norm_eps", 1e-6}});
  } else if (family == "mistral") {
    keys.update({{"model_type", "mistral"},
                 {"max_position_embeddings", 32768},
                 {"rope_theta", 1000000.0},
                 {"head_dim", 128},
                 {"sliding_window", nullptr}});
  } else if (family == "qwen2") {
    keys.update({{"model_type", "qwen2"},
                 {"max_position_embeddings", 32768},
                 {"rope_theta", 1000000.0},
                 {"rms_norm_eps", 1e-6}});
  } else if (family == "qwen3" || family == "qwen3_moe") {
    keys.update({{"model_type", family},
                 {"head_dim", 128},
                 {"max_position_embeddings", 40960},
                 {"rope_theta", 1000000.0},
                 {"rms_norm_eps", 1e-6}});
  } else if (family == "mixtral") {
    keys.update({{"model_type", "mixtral"},
                 {"num_local_experts", 8},
                 {"num_experts_per_tok", 2},
                 {"max_position_embeddings", 32768},
                 {"rope_theta", 1000000.0}});
  } else if (family == "gpt_oss") {
    keys.update({{"model_type", "gpt_oss"},
                 {"head_dim", 64},
                 {"attention_bias", true},
                 {"num_experts_per_tok", 4},
                 {"sliding_window", 128},
                 {"swiglu_limit", 7.0},
                 {"rope_theta", 150000.0},
                 {"rope_scaling",
                  {{"rope_type", "yarn"},
                   {"factor", 32.0},
                   {"beta_fast", 32.0},
                   {"beta_slow", 1.0},
                   {"truncate", false},
                   {"original_max_position_embeddings", 4096}}}});
  } else if (family == "olmoe") {
    keys.update({{"model_type", "olmoe"},
                 {"num_experts", 64},
                 {"num_experts_per_tok", 8},
                 {"max_position_embeddings", 4096},
                 {"rope_theta", 10000.0}});
  } else if (family == "glm4_moe") {
    keys.update({{"model_type", "glm4_moe"},
                 {"head_dim", 128},
                 {"num_experts_per_tok", 8},
                 {"attention_bias", true},
                 {"partial_rotary_factor", 0.5},
                 {"rope_theta", 1000000.0}});
  } else if (family == "phi3") {
    keys.update({{"model_type", "phi3"},
                 {"max_position_embeddings", 4096},
                 {"rope_theta", 10000.0},
                 {"sliding_window", 2047}});
  } else if (family == "smollm3") {
    keys.update({{"model_type", "smollm3"},
                 {"max_position_embeddings", 65536},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 5000000.0}});
  } else if (family == "olmo2") {
    keys.update({{"model_type", "olmo2"}, {"max_position_embeddings", 4096}, {"rms_norm_eps", 1e-6}});
  } else if (family == "olmo3") {
    keys.update({{"model_type", "olmo3"},
                 {"max_position_embeddings", 65536},
                 {"rms_norm_eps", 1e-6},
                 {"sliding_window", 4096},
                 {"rope_scaling",
                  {{"rope_type", "yarn"},
                   {"factor", 8.0},
                   {"beta_fast", 32.0},
                   {"beta_slow", 1.0},
                   {"attention_factor", 1.2079441541679836},
                   {"original_max_position_embeddings", 8192}}}});
  } else if (family == "granite") {
    keys.update({{"model_type", "granite"},
                 {"rope_theta", 10000000.0},
                 {"embedding_multiplier", 12.0},
                 {"residual_multiplier", 0.22}});
  } else if (family == "seed_oss") {
    keys.update({{"model_type", "seed_oss"},
                 {"head_dim", 128},
                 {"attention_bias", true},
                 {"max_position_embeddings", 524288},
                 {"rms_norm_eps", 1e-6},
                 {"rope_theta", 10000000.0}});
  } else if (family == "gemma") {
    keys = {{"model_type", "gemma"},           {"head_dim", 256},      {"hidden_act", "gelu_pytorch_tanh"},
            {"max_position_embeddings", 8192}, {"rms_norm_eps", 1e-6}, {"rope_theta", 10000.0}};
  } else if (family == "gemma2" || family == "gemma3_text") {
    keys = {{"model_type", family},
            {"head_dim", 256},
            {"hidden_activation", "gelu_pytorch_tanh"},
            {"rms_norm_eps", 1e-6},
            {"query_pre_attn_scalar", 256}};
  }
  if (family == "gemma2") {
    keys.update({{"sliding_window", 4096}, {"max_position_embeddings", 8192}, {"rope_theta", 10000.0}});
  } else if (family == "gemma3_text") {
    keys.update({{"sliding_window", 1024},
                 {"sliding_window_pattern", 6},
                 {"max_position_embeddings", 131072},
                 {"rope_theta", 1000000.0},
                 {"rope_local_base_freq", 10000.0},
                 {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  }
  return keys;
}

struct Shape {
  const char* name;
  const char* family;
  int hidden, intermediate, layers, heads, kv_heads, vocabulary;
  bool tied = false;
  const char* more = "{}";  ///< keys in which it differs from its family
};

/// Gemma 3 is the text model of the published one.
constexpr std::array kShapes{
    Shape{"gemma-2-27b", "gemma2", 4608, 36864, 46, 32, 16, 256000, true,
          R"({"head_dim": 128, "query_pre_attn_scalar": 144})"},
    Shape{"gemma-2-2b", "gemma2", 2304, 9216, 26, 8, 4, 256000, true},
    Shape{"gemma-2-9b", "gemma2", 3584, 14336, 42, 16, 8, 256000, true},
    Shape{"gemma-2b", "gemma", 2048, 16384, 18, 8, 1, 256000, true},
    Shape{"gemma-3-12b", "gemma3_text", 3840, 15360, 48, 16, 8, 262208, true},
    Shape{"gemma-3-1b", "gemma3_text", 1152, 6912, 26, 4, 1, 262144, true,
          R"({"sliding_window": 512, "max_position_embeddings": 32768, "rope_scaling": null})"},
    Shape{"gemma-3-270m", "gemma3_text", 640, 2048, 18, 4, 1, 262144, true,
          R"({"sliding_window": 512, "max_position_embeddings": 32768, "rope_scaling": null})"},
    Shape{"gemma-3-27b", "gemma3_text", 5376, 21504, 62, 32, 16, 262208, true,
          R"({"head_dim": 128, "query_pre_attn_scalar": 168})"},
    Shape{"gemma-3-4b", "gemma3_text", 2560, 10240, 34, 8, 4, 262208, true},
    Shape{"gemma-7b", "gemma", 3072, 24576, 28, 16, 16, 256000, true},
    Shape{"glm-4.5", "glm4_moe", 5120, 12288, 92, 96, 8, 151552, false,
          R"({"moe_intermediate_size": 1536, "n_routed_experts": 160, "first_k_dense_replace": 3,
              "routed_scaling_factor": 2.5, "use_qk_norm": true})"},
    Shape{"glm-4.5-air", "glm4_moe", 4096, 10944, 46, 96, 8, 151552},
    Shape{"gpt-oss-120b", "gpt_oss", 2880, 2880, 36, 64, 8, 201088, false, R"({"num_local_experts": 128})"},
    Shape{"gpt-oss-20b", "gpt_oss", 2880, 2880, 24, 64, 8, 201088, false, R"({"num_local_experts": 32})"},
    Shape{"granite-3.3-2b", "granite", 2048, 8192, 40, 32, 8, 49159, true,
          R"({"attention_multiplier": 0.015625, "logits_scaling": 8.0})"},
    Shape{"granite-3.3-8b", "granite", 4096, 12800, 40, 32, 8, 49159, true,
          R"({"attention_multiplier": 0.0078125, "logits_scaling": 16.0})"},
    Shape{"llama-2-13b", "llama2", 5120, 13824, 40, 40, 40, 32000},
    Shape{"llama-2-70b", "llama2", 8192, 28672, 80, 64, 8, 32000},
    Shape{"llama-2-7b", "llama2", 4096, 11008, 32, 32, 32, 32000},
    Shape{"llama-3-70b", "llama3", 8192, 28672, 80, 64, 8, 128256},
    Shape{"llama-3-8b", "llama3", 4096, 14336, 32, 32, 8, 128256},
    Shape{"llama-3.1-405b", "llama3.1", 16384, 53248, 126, 128, 8, 128256},
    Shape{"llama-3.1-70b", "llama3.1", 8192, 28672, 80, 64, 8, 128256},
    Shape{"llama-3.1-8b", "llama3.1", 4096, 14336, 32, 32, 8, 128256},
    Shape{"llama-3.2-1b", "llama3.2", 2048, 8192, 16, 32, 8, 128256, true},
    Shape{"llama-3.2-3b", "llama3.2", 3072, 8192, 28, 24, 8, 128256, true},
    Shape{"mistral-7b", "mistral", 4096, 14336, 32, 32, 8, 32768},
    Shape{"mistral-7b-v0.1", "mistral", 4096, 14336, 32, 32, 8, 32000, false,
          R"({"sliding_window": 4096, "rope_theta": 10000.0})"},
    Shape{"mistral-7b-v0.2", "mistral", 4096, 14336, 32, 32, 8, 32000},
    Shape{"mistral-nemo-12b", "mistral", 5120, 14336, 40, 32, 8, 131072, false,
          R"({"max_position_embeddings": 131072})"},
    Shape{"mistral-small-24b", "mistral", 5120, 32768, 40, 32, 8, 131072, false,
          R"({"rope_theta": 100000000.0})"},
    Shape{"mixtral-8x7b", "mixtral", 4096, 14336, 32, 32, 8, 32000},
    Shape{"olmo-2-13b", "olmo2", 5120, 13824, 40, 40, 40, 100352},
    Shape{"olmo-2-1b", "olmo2", 2048, 8192, 16, 16, 16, 100352},
    Shape{"olmo-2-32b", "olmo2", 5120, 27648, 64, 40, 8, 100352},
    Shape{"olmo-2-7b", "olmo2", 4096, 11008, 32, 32, 32, 100352},
    Shape{"olmo-3-32b", "olmo3", 5120, 27648, 64, 40, 8, 100278},
    Shape{"olmo-3-7b", "olmo3", 4096, 11008, 32, 32, 32, 100278},
    Shape{"olmoe-1b-7b", "olmoe", 2048, 1024, 16, 16, 16, 50304},
    Shape{"phi-3-medium", "phi3", 5120, 17920, 40, 40, 10, 32064},
    Shape{"phi-3-mini", "phi3", 3072, 8192, 32, 32, 32, 32064},
    Shape{"phi-4", "phi3", 5120, 17920, 40, 40, 10, 100352, false,
          R"({"max_position_embeddings": 16384, "rope_theta": 250000.0, "sliding_window": null})"},
    Shape{"qwen2.5-0.5b", "qwen2", 896, 4864, 24, 14, 2, 151936, true},
    Shape{"qwen2.5-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 151936, true},
    Shape{"qwen2.5-14b", "qwen2", 5120, 13824, 48, 40, 8, 152064},
    Shape{"qwen2.5-32b", "qwen2", 5120, 27648, 64, 40, 8, 152064},
    Shape{"qwen2.5-3b", "qwen2", 2048, 11008, 36, 16, 2, 151936, true},
    Shape{"qwen2.5-72b", "qwen2", 8192, 29568, 80, 64, 8, 152064},
    Shape{"qwen2.5-7b", "qwen2", 3584, 18944, 28, 28, 4, 152064},
    Shape{"qwen3-0.6b", "qwen3", 1024, 3072, 28, 16, 8, 151936, true},
    Shape{"qwen3-1.7b", "qwen3", 2048, 6144, 28, 16, 8, 151936, true},
    Shape{"qwen3-14b", "qwen3", 5120, 17408, 40, 40, 8, 151936},
    Shape{"qwen3-235b-a22b", "qwen3_moe", 4096, 12288, 94, 64, 4, 151936, false,
          R"({"moe_intermediate_size": 1536})"},
    Shape{"qwen3-30b-a3b", "qwen3_moe", 2048, 6144, 48, 32, 4, 151936, false,
          R"({"moe_intermediate_size": 768})"},
    Shape{"qwen3-32b", "qwen3", 5120, 25600, 64, 64, 8, 151936},
    Shape{"qwen3-4b", "qwen3", 2560, 9728, 36, 32, 8, 151936, true},
    Shape{"qwen3-8b", "qwen3", 4096, 12288, 36, 32, 8, 151936},
    Shape{"r1-distill-qwen-1.5b", "qwen2", 1536, 8960, 28, 12, 2, 151936},
    Shape{"seed-oss-36b", "seed_oss", 5120, 27648, 64, 80, 8, 155136},
    Shape{"smollm2-1.7b", "smollm2", 2048, 8192, 24, 32, 32, 49152, true, R"({"rope_theta": 130000.0})"},
    Shape{"smollm2-135m", "smollm2", 576, 1536, 30, 9, 3, 49152, true},
    Shape{"smollm2-360m", "smollm2", 960, 2560, 32, 15, 5, 49152, true},
    Shape{"smollm3-3b", "smollm3", 2048, 11008, 36, 16, 4, 128256, true},
    Shape{"tiny", "llama3", 128, 384, 4, 4, 2, 4096},
    Shape{"tinyllama-1.1b", "llama2", 2048, 5632, 22, 32, 4, 32000, false,
          R"({"max_position_embeddings": 2048})"},
    Shape{"yi-1.5-34b", "yi", 7168, 20480, 60, 56, 8, 64000},
    Shape{"yi-1.5-6b", "yi", 4096, 11008, 32, 32, 4, 64000},
    Shape{"yi-1.5-9b", "yi", 4096, 11008, 48, 32, 4, 64000},
};

Json config_of(const Shape& shape) {
  Json config = family_keys(shape.family);
  config.update({{"vocab_size", shape.vocabulary},
                 {"hidden_size", shape.hidden},
                 {"intermediate_size", shape.intermediate},
                 {"num_hidden_layers", shape.layers},
                 {"num_attention_heads", shape.heads},
                 {"num_key_value_heads", shape.kv_heads},
                 {"tie_word_embeddings", shape.tied}});
  if (config.at("model_type") == "qwen3_moe")
    config.update({{"num_experts", 128}, {"num_experts_per_tok", 8}, {"norm_topk_prob", true}});
  config.update(Json::parse(shape.more));
  return config;
}

const Shape* shape_named(const std::string& name) {
  const auto found = std::ranges::find_if(kShapes, [&](const Shape& shape) { return name == shape.name; });
  return found == kShapes.end() ? nullptr : &*found;
}

std::string last_part(std::string path) {
  while (path.ends_with('/')) path.pop_back();
  return path.substr(path.rfind('/') + 1);
}

[[noreturn]] void refuse_model(const std::string& wanted) {
  std::string names;
  for (const std::string& name : shape_names()) names += (names.empty() ? "" : ", ") + name;
  const std::string known = name_on_hub(last_part(wanted)).shape;
  const std::string near = nearest_name(last_part(wanted), shape_names());
  throw Error(
      {.what = "'" + wanted + "' is neither the folder of a model nor a shape with a name",
       .expected = "a folder with config.json, a config.json, a model's name on the hub, or one of " + names,
       .fix = !known.empty() ? "name the folder where the model is, or its built-in shape: " + known
              : near.empty() ? "name one of these, or a folder with config.json"
                             : "did you mean '" + near + "'?",
       .code = ExitCode::usage});
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  return names;
}

std::string shape_of_model(const std::string& name) {
  return is_name_on_hub(name) ? name_on_hub(last_part(name)).shape : "";
}

Architecture find_shape(const std::string& wanted) {
  std::error_code ignored;
  if (std::filesystem::is_directory(wanted, ignored)) return read_architecture(wanted);
  if (wanted.ends_with(".json")) return read_architecture(read_json(wanted), wanted);
  const std::string where = "the shape '" + wanted + "'";
  if (const Shape* shape = shape_named(wanted)) return read_architecture(config_of(*shape), where);
  const std::string shape = shape_of_model(wanted);
  if (shape.empty()) refuse_model(wanted);
  Json config = config_of(*shape_named(shape));
  if (const std::string stored = name_on_hub(last_part(wanted)).stored; !stored.empty())
    config["quantization_config"] = Json::parse(stored);
  return read_architecture(config, where);
}

}  // namespace octet::model
