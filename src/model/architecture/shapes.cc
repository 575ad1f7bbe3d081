// Shapes of well-known models, as their config.json has them.
#include "octet/model/shapes.h"

#include <filesystem>
#include <map>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"

namespace octet::model {
namespace {

Json llama(int hidden, int intermediate, int layers, int heads, int kv_heads, int vocabulary) {
  return {{"model_type", "llama"},
          {"vocab_size", vocabulary},
          {"hidden_size", hidden},
          {"intermediate_size", intermediate},
          {"num_hidden_layers", layers},
          {"num_attention_heads", heads},
          {"num_key_value_heads", kv_heads},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 131072},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 500000.0},
          {"tie_word_embeddings", false}};
}

Json qwen2(int hidden, int intermediate, int layers, int heads, int kv_heads, int vocabulary) {
  Json shape = llama(hidden, intermediate, layers, heads, kv_heads, vocabulary);
  shape["model_type"] = "qwen2";
  shape["max_position_embeddings"] = 32768;
  shape["rope_theta"] = 1000000.0;
  return shape;
}

Json qwen3(int hidden, int intermediate, int layers, int heads, int kv_heads, int vocabulary) {
  Json shape = qwen2(hidden, intermediate, layers, heads, kv_heads, vocabulary);
  shape["model_type"] = "qwen3";
  shape["head_dim"] = 128;
  shape["max_position_embeddings"] = 40960;
  shape["rms_norm_eps"] = 1e-6;
  return shape;
}

Json qwen3_30b_a3b() {
  Json shape = qwen3(2048, 6144, 48, 32, 4, 151936);
  shape["model_type"] = "qwen3_moe";
  shape["num_experts"] = 128;
  shape["num_experts_per_tok"] = 8;
  shape["moe_intermediate_size"] = 768;
  shape["norm_topk_prob"] = true;
  return shape;
}

/// The text model of the published one.
Json gemma3_27b() {
  Json shape = llama(5376, 21504, 62, 32, 16, 262208);
  shape["model_type"] = "gemma3_text";
  shape["head_dim"] = 128;
  shape["hidden_activation"] = "gelu_pytorch_tanh";
  shape["rms_norm_eps"] = 1e-6;
  shape["rope_theta"] = 1000000.0;
  shape["rope_local_base_freq"] = 10000.0;
  shape["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  shape["sliding_window"] = 1024;
  shape["sliding_window_pattern"] = 6;
  shape["query_pre_attn_scalar"] = 168;
  shape["tie_word_embeddings"] = true;
  shape.erase("hidden_act");
  return shape;
}

Json llama3_scaling(double factor) {
  return {{"rope_type", "llama3"},
          {"factor", factor},
          {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0},
          {"original_max_position_embeddings", 8192}};
}

std::map<std::string, Json> shapes() {
  std::map<std::string, Json> all;
  all["tiny"] = llama(128, 384, 4, 4, 2, 4096);
  all["llama-3.1-8b"] = llama(4096, 14336, 32, 32, 8, 128256);
  all["llama-3.1-8b"]["rope_scaling"] = llama3_scaling(8.0);
  all["llama-3.1-70b"] = llama(8192, 28672, 80, 64, 8, 128256);
  all["llama-3.1-70b"]["rope_scaling"] = llama3_scaling(8.0);
  all["llama-3.1-405b"] = llama(16384, 53248, 126, 128, 8, 128256);
  all["llama-3.1-405b"]["rope_scaling"] = llama3_scaling(8.0);
  all["llama-3.2-1b"] = llama(2048, 8192, 16, 32, 8, 128256);
  all["llama-3.2-1b"]["rope_scaling"] = llama3_scaling(32.0);
  all["llama-3.2-1b"]["tie_word_embeddings"] = true;
  all["qwen2.5-0.5b"] = qwen2(896, 4864, 24, 14, 2, 151936);
  all["qwen2.5-0.5b"]["tie_word_embeddings"] = true;
  all["qwen2.5-0.5b"]["rms_norm_eps"] = 1e-6;
  all["qwen2.5-32b"] = qwen2(5120, 27648, 64, 40, 8, 152064);
  all["qwen3-8b"] = qwen3(4096, 12288, 36, 32, 8, 151936);
  all["qwen3-30b-a3b"] = qwen3_30b_a3b();
  all["gemma-3-27b"] = gemma3_27b();
  return all;
}

}  // namespace

std::vector<std::string> shape_names() {
  std::vector<std::string> names;
  for (const auto& [name, json] : shapes()) names.push_back(name);
  return names;
}

Architecture find_shape(const std::string& wanted) {
  std::error_code ignored;
  if (std::filesystem::is_directory(wanted, ignored)) return read_architecture(wanted);
  if (wanted.ends_with(".json")) return read_architecture(read_json(wanted), wanted);
  const auto all = shapes();
  if (const auto found = all.find(wanted); found != all.end()) {
    return read_architecture(found->second, "the shape '" + wanted + "'");
  }
  std::string names;
  for (const std::string& name : shape_names()) names += (names.empty() ? "" : ", ") + name;
  const std::string near = nearest_name(wanted, shape_names());
  throw Error({.what = "'" + wanted + "' is neither a model's folder nor a shape with a name",
               .expected = "a folder with config.json, a config.json, or one of " + names,
               .fix = near.empty() ? "name one of these, or a folder with config.json"
                                   : "did you mean '" + near + "'?",
               .code = ExitCode::usage});
}

}  // namespace octet::model
