#include "octet/model/architecture.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>

#include "families.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/model_file.h"
#include "octet/base/strings.h"
#include "octet/ops/routing.h"
#include "stored_weights.h"

namespace octet::model {
namespace {

std::string listed_families() {
  std::string all;
  for (const std::string& name : known_families()) all += (all.empty() ? "" : ", ") + name;
  return all;
}

/// Throws Error if `type` is a family with a part that Octet lacks.
void require_built(const std::string& type, const std::string& where) {
  for (const RefusedFamily& family : refused_families()) {
    if (type != family.model_type) continue;
    refuse("this model needs a part that Octet does not have: " + std::string(family.part),
           "model_type: one of " + listed_families(), "'" + type + "'", where,
           "use a model of one of these families");
  }
}

/// Returns the class of reward models of a family, or "".
std::string reward_class_of(const Family& family) {
  constexpr std::string_view end = "ForCausalLM";
  if (!family.reward_class) return "";
  return std::string(family.class_name.substr(0, family.class_name.size() - end.size())) +
         "ForSequenceClassification";
}

const Family& family_of(const Json& config, const std::string& where) {
  const std::string type = json_string(config, "model_type", "", where);
  std::string class_name;
  if (const auto it = config.find("architectures"); it != config.end() && !it->empty())
    class_name = it->front().get<std::string>();
  for (const Family& family : families()) {
    if (type != family.model_type) continue;
    const bool text_class = !family.text_class.empty() && class_name == family.text_class;
    const bool scores = family.reward_class && class_name == reward_class_of(family);
    if (!class_name.empty() && class_name != family.class_name && !text_class && !scores) {
      refuse("the architecture of this model is not known", std::string(family.class_name), class_name,
             where + ": architectures", "use a model of this class");
    }
    return family;
  }
  require_built(type, where);
  refuse(
      "the architecture of this model is not known", "model_type: one of " + listed_families(),
      type.empty() ? "no model_type" : "'" + type + "'" + (class_name.empty() ? "" : " (" + class_name + ")"),
      where, "use a model of one of these families");
}

bool read_bias(Reader& config, BiasRule rule, std::string_view name) {
  const std::string key(name);
  // In transformers, too, a family without this key ignores it. `true` is an error if the family has no bias.
  const bool asked = config.boolean(key, false);
  switch (rule) {
    case BiasRule::always:
      return true;
    case BiasRule::by_key:
      return asked;
    case BiasRule::not_here:
      return false;
    case BiasRule::never:
      break;
  }
  if (asked) refuse("'" + key + "' is not supported by this family", "false", "true", config.where());
  return false;
}

void refuse_unknown_keys(const Reader& config, const Family& family) {
  for (const auto& [key, value] : config.object().items()) {
    if (config.seen().contains(key) || is_harmless_key(key) || value.is_null()) continue;
    if (std::ranges::find(family.ignored, key) != family.ignored.end()) continue;
    bool neutral = false;
    for (const NeutralKey& known : neutral_keys()) {
      if (key != known.key) continue;
      if (!value.is_number() || value.get<double>() != known.neutral) {
        refuse("'" + key + "' asks for what is not supported: " + std::string(known.meaning),
               short_json(Json(known.neutral)), short_json(value), config.where(),
               known.trains_without ? "set it to 0 in this file to train without dropout" : kOtherModel);
      }
      neutral = true;
    }
    if (neutral || (value.is_boolean() && !value.get<bool>())) continue;
    std::vector<std::string> known(config.seen().begin(), config.seen().end());
    const std::string near = nearest_name(key, known);
    refuse("key '" + key + "' is not known and may change what the model computes",
           near.empty() ? "a key of this family" : "'" + near + "'", short_json(value), config.where(),
           "remove the key if it has no effect on the model");
  }
}

}  // namespace

bool Architecture::operator==(const Architecture& other) const {
  const auto scalars = [](const Architecture& a) {
    return std::tie(a.vocabulary, a.hidden, a.intermediate, a.layers, a.heads.q_heads, a.heads.kv_heads,
                    a.heads.head_dim, a.max_positions, a.norm_eps, a.activation, a.tied, a.qkv_bias,
                    a.output_bias, a.mlp_bias, a.one_plus_weight, a.embedding_scale, a.attention_scale,
                    a.padding_id, a.qk_norm, a.qk_norm_of_all_heads, a.rotary_dim, a.interleaved_rotary,
                    a.sublayer_norms, a.names, a.layer_norm, a.norm_bias, a.parallel, a.gated, a.fused_qkv,
                    a.fused_gate_up, a.multimodal, a.attention_sinks, a.activation_limit,
                    a.attention_soft_cap, a.logit_soft_cap, a.ropes, a.blocks, a.experts, a.initializer_range,
                    a.embedding_initializer_range, a.tuning, a.share.tensor_rank, a.share.tensor_size,
                    a.share.stage, a.share.stages, a.share.expert_rank, a.share.expert_size, a.input_norms,
                    a.qk_norm_last, a.delta, a.latent, a.output_gate, a.value_norm, a.output_scales,
                    a.further_modules, a.further_blocks, a.scores, a.rounds_embedding_scale,
                    a.residual_multiplier, a.logits_divisor);
  };
  return model_type == other.model_type && scalars(*this) == scalars(other);
}

std::vector<std::string> known_families() {
  std::vector<std::string> names;
  for (const Family& family : families()) names.emplace_back(family.model_type);
  return names;
}

namespace {

/// `config` with the values of `defaults` under the keys that it lacks.
Json with_defaults(Json config, std::string_view defaults) {
  if (defaults.empty()) return config;
  const Json values = parse_json(defaults, "defaults");
  for (const auto& [key, value] : values.items()) {
    const bool has_older = key == "num_experts" && config.contains("num_local_experts");
    if (!config.contains(key) && !has_older) config[key] = value;
  }
  return config;
}

void read_sizes(Reader& reader, const Family& family, Architecture& a) {
  a.vocabulary = reader.size("vocab_size", kMaxVocabulary);
  a.hidden = reader.size("hidden_size", kMaxWidth);
  a.intermediate = reader.size("intermediate_size", kMaxWidth);
  a.layers = reader.size("num_hidden_layers", kMaxLayers);
  a.heads.q_heads = reader.size("num_attention_heads", kMaxHeads);
  a.max_positions = reader.size("max_position_embeddings", 2048, kMaxPositions);
  if (family.latents) return read_latents(reader, a);
  a.heads.kv_heads = reader.size("num_key_value_heads", a.heads.q_heads, kMaxHeads);
  if (a.heads.q_heads % a.heads.kv_heads != 0) {
    refuse("the heads cannot be grouped", "num_attention_heads divisible by num_key_value_heads",
           std::to_string(a.heads.q_heads) + " and " + std::to_string(a.heads.kv_heads), reader.where());
  }
  if (reader.find("head_dim") == nullptr && a.hidden % a.heads.q_heads != 0) {
    refuse("the size of a head is not known", "'head_dim', or hidden_size divisible by num_attention_heads",
           std::to_string(a.hidden) + " and " + std::to_string(a.heads.q_heads), reader.where());
  }
  a.heads.head_dim =
      reader.size("head_dim", std::max<std::int64_t>(1, a.hidden / a.heads.q_heads), kMaxHeadDim);
  if (a.heads.head_dim % 2 != 0) {
    refuse("a rotary embedding needs heads of even size", "an even head_dim",
           std::to_string(a.heads.head_dim), reader.where());
  }
}

ops::Activation read_activation(Reader& reader, const Family& family, double& limit) {
  std::string name = reader.text(std::string(family.activation_key), "silu");
  // transformers reads it so in this family, because the first published files have it.
  if (family.gelu_is_tanh && name == "gelu") name = "gelu_pytorch_tanh";
  if (family.biased_experts) {
    limit = reader.positive("swiglu_limit", 7.0, 1e-3, 1e6);
    const double alpha = reader.positive("swiglu_alpha", 1.702);
    if (alpha == 1.702 && name == "silu") return ops::Activation::clamped;
    refuse("the activation is not supported by this family", "hidden_act: silu and swiglu_alpha: 1.702",
           name + " and " + short_json(alpha), reader.where());
  }
  if (name == "xielu" && !family.gated) return ops::Activation::xielu;
  if (name == "silu" || name == "swish") return ops::Activation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return ops::Activation::gelu_tanh;
  refuse("the activation is not supported",
         family.gated ? "silu or gelu_pytorch_tanh" : "silu, gelu_pytorch_tanh or xielu", name,
         reader.where() + ": " + std::string(family.activation_key));
}

/// Returns the dimensions of a head that rotate; 0: all. transformers 5 writes the key into rope_parameters.
std::int64_t read_rotary_dim(Reader& reader, std::int64_t head_dim) {
  double factor = reader.positive("partial_rotary_factor", 1.0, 1e-6, 1.0);
  if (const Json* parameters = reader.find("rope_parameters"); parameters != nullptr) {
    factor = json_number(*parameters, "partial_rotary_factor", factor, reader.where() + ": rope_parameters");
  }
  const bool fits = factor > 0.0 && factor <= 1.0;
  const auto rotated = fits ? static_cast<std::int64_t>(static_cast<double>(head_dim) * factor) : 0;
  if (rotated < 2 || rotated % 2 != 0) {
    refuse("'partial_rotary_factor' cannot be used",
           "a number above 0 and at most 1, with an even number of dimensions that rotate",
           Json(factor).dump() + " of " + std::to_string(head_dim) + " dimensions", reader.where());
  }
  return rotated == head_dim ? 0 : rotated;
}

/// Reads the multipliers of Granite. Absent keys are 1.
void read_multipliers(Reader& reader, Architecture& a) {
  constexpr double kLow = 1e-6, kHigh = 1e6;
  a.embedding_scale = reader.positive("embedding_multiplier", 1.0, kLow, kHigh);
  a.rounds_embedding_scale = false;
  a.residual_multiplier = reader.positive("residual_multiplier", 1.0, kLow, kHigh);
  a.attention_scale = reader.positive("attention_multiplier", 1.0, kLow, kHigh);
  a.logits_divisor = reader.positive("logits_scaling", 1.0, kLow, kHigh);
}

/// A soft cap of a family that has such a key; null or absent: none.
double read_cap(Reader& reader, bool has_one, const std::string& key) {
  if (!has_one || reader.find(key) == nullptr) return 0.0;
  return reader.positive(key, 0.0);
}

/// Whether outputs of attention have gates. Checks the activation of the gates of delta rules, too.
bool read_output_gate(Reader& reader, const Family& family) {
  if (!family.output_gate) return false;
  if (!reader.boolean("attn_output_gate", true)) {
    refuse("attention of this family has a gate for its output", "attn_output_gate: true", "false",
           reader.where());
  }
  const std::string activation = reader.text("output_gate_type", "swish");
  if (activation != "swish" && activation != "silu") {
    refuse("the gate of linear attention is not supported", "output_gate_type: swish", activation,
           reader.where());
  }
  return true;
}

bool names_class(const Json& config, std::string_view class_name) {
  const auto classes = config.find("architectures");
  return !class_name.empty() && classes != config.end() && !classes->empty() &&
         classes->front() == Json(class_name);
}

/// Throws Error unless the model gives one score. transformers has two labels by default.
void require_one_score(Reader& reader) {
  const Json* labels = reader.find("id2label");
  const std::int64_t count = labels != nullptr && labels->is_object()
                                 ? static_cast<std::int64_t>(labels->size())
                                 : reader.size("num_labels", std::int64_t{2}, std::int64_t{1} << 20);
  if (count == 1) return;
  refuse("a model that classifies texts is no reward model", "one label: num_labels 1",
         std::to_string(count) + " labels", reader.where(),
         "use a reward model, or a model that writes text");
}

/// Returns the keys of the text model of a config without text_config.
Json flat_text(const Json& config, const Family& family) {
  Json part = config;
  for (const std::string_view key : family.ignored) part.erase(std::string(key));
  if (const auto range = config.find("initializer_range"); range != config.end())
    part["initializer_range"] = *range;
  for (const char* key : {"model_type", "quantization_config", "text_config"}) part.erase(key);
  return part;
}

/// Throws Error if a text_config has the model_type of no text model.
void require_text_model(const Json& type, const Family& family, const std::string& where) {
  const auto known = [&](const Family& other) {
    return other.text_model.empty() && type == Json(other.model_type);
  };
  if (type == Json(family.text_model) || (family.any_text_model && std::ranges::any_of(families(), known)))
    return;
  if (type.is_string()) require_built(type.get<std::string>(), where);
  refuse("the text model of this model is not known",
         std::string(family.text_model) + (family.any_text_model ? ", or another family of text models" : ""),
         short_json(type), where);
}

/// The text model of a config that has one as a part; transformers leaves out of it what its class has
/// anyway.
Architecture read_text_model(const Json& config, const Family& family, const std::string& where) {
  const auto text = config.find("text_config");
  if (text == config.end() && names_class(config, family.text_class)) {
    // The text model alone, saved under the name of the whole.
    Json alone = config;
    alone["model_type"] = family.text_model;
    return read_architecture(alone, where);
  }
  const bool flat = text == config.end() && family.flat_text;
  if (!flat && (text == config.end() || !text->is_object())) {
    refuse("'text_config' is missing", "an object", text == config.end() ? "nothing" : short_json(*text),
           where);
  }
  const std::string inner = flat ? where : where + ": text_config";
  Json part = flat ? flat_text(config, family) : *text;
  if (!part.contains("model_type")) part["model_type"] = family.text_model;
  require_text_model(part["model_type"], family, inner);
  if (part.contains("text_config")) refuse("'text_config' is nested twice", "one", "two", inner);
  part.erase("architectures");
  Reader reader(config, where);
  reader.find("text_config");
  // transformers 4.52 and later 4 write the keys of the text model twice, and read them from text_config.
  for (const auto& [key, value] : config.items()) {
    if (family.flat_text && part.contains(key)) reader.find(key);
  }
  if (reader.find("tie_word_embeddings") != nullptr) {
    part["tie_word_embeddings"] = reader.boolean("tie_word_embeddings", true);
  }
  const Json* quantised = reader.find("quantization_config");
  refuse_unknown_keys(reader, family);
  const bool usual = part["model_type"] == Json(family.text_model);
  Architecture a = read_architecture(with_defaults(std::move(part), usual ? family.defaults : ""), inner);
  if (quantised != nullptr) a.stored = read_stored_weights(*quantised, where, a.experts.biases);
  a.multimodal = true;
  a.unprefixed_text = family.unprefixed_text;
  name_tensors(a, [](const std::string&) { return false; });
  return a;
}

}  // namespace

Architecture read_architecture(const Json& config, const std::string& where) {
  if (!config.is_object()) refuse("a model's config is not an object", "{…}", short_json(config), where);
  require_types(config, "config.json", where);
  const Family& family = family_of(config, where);
  if (!family.text_model.empty()) return read_text_model(config, family, where);
  const Json whole = with_defaults(config, family.defaults);
  Reader reader(whole, where);
  Architecture a;
  a.model_type = family.model_type;
  a.names = family.names;
  read_sizes(reader, family, a);
  // Models leave it out, set it to null, or to a number outside the vocabulary.
  if (const Json* id = reader.find("pad_token_id")) {
    const auto pad = id->get<std::int64_t>();
    if (pad >= 0 && pad < a.vocabulary) a.padding_id = static_cast<std::int32_t>(pad);
  }
  a.norm_eps = reader.positive(std::string(family.norm_eps_key), 1e-6);
  a.activation = read_activation(reader, family, a.activation_limit);
  a.tied = reader.boolean("tie_word_embeddings", false);
  a.qkv_bias = read_bias(reader, family.qkv_bias, family.qkv_bias_key);
  a.output_bias = read_bias(reader, family.output_bias, family.output_bias_key);
  a.mlp_bias = read_bias(reader, family.mlp_bias, family.mlp_bias_key);
  a.one_plus_weight = family.one_plus_weight;
  a.qk_norm = family.qk_norm;
  if (!family.qk_norm_key.empty()) a.qk_norm = reader.boolean(std::string(family.qk_norm_key), false);
  a.qk_norm_of_all_heads = family.qk_norm_of_all_heads;
  a.qk_norm_last = family.norm_last;
  a.fused_qkv = family.fused_qkv;
  if (family.clip_key && reader.find("clip_qkv") != nullptr) {
    refuse("'clip_qkv' is not supported", "clip_qkv: null", short_json(*reader.find("clip_qkv")), where);
  }
  a.sublayer_norms = family.sublayer_norms;
  a.input_norms = family.input_norms;
  a.layer_norm = family.layer_norm;
  a.norm_bias = family.norm_bias;
  a.parallel = family.parallel;
  a.fused_gate_up = family.fused_gate_up;
  a.gated = family.gated;
  if (!family.logit_scale_key.empty())
    a.logits_divisor = 1.0 / reader.positive(std::string(family.logit_scale_key), 1.0, 1e-6, 1e6);
  if (family.scaled_embedding) a.embedding_scale = std::sqrt(static_cast<double>(a.hidden));
  auto scalar = static_cast<double>(a.heads.head_dim);
  if (family.query_scalar) scalar = reader.positive("query_pre_attn_scalar", scalar);
  a.attention_scale = family.heads_by_layer ? 1.0 : 1.0 / std::sqrt(scalar);
  if (family.multipliers) read_multipliers(reader, a);
  a.attention_soft_cap = read_cap(reader, family.attention_cap, "attn_logit_softcapping");
  a.logit_soft_cap = read_cap(reader, family.soft_caps, "final_logit_softcapping");
  a.attention_sinks = family.attention_sinks;
  if (family.scaled_rope && reader.find("rope_parameters") == nullptr &&
      reader.find("rope_scaling") == nullptr) {
    refuse("the rotary embedding is missing", "'rope_parameters' or 'rope_scaling'", "neither", where);
  }
  if (family.partial_rotary) a.rotary_dim = read_rotary_dim(reader, a.heads.head_dim);
  a.ropes = read_ropes(reader, family, a.rotated());
  a.interleaved_rotary = family.interleaved_rotary;
  if (family.latents) {
    a.interleaved_rotary = family.interleaved_rotary || reader.boolean("rope_interleave", true);
    a.attention_scale *= score_factor_of_latents(reader, family, a.ropes.front());
  }
  a.blocks = read_blocks(reader, family, a.layers);
  if (family.heads_by_layer) read_heads_by_layer(reader, a);
  read_delta_rule(reader, family, a);
  a.output_gate = read_output_gate(reader, family);
  a.further_modules = family.delta_rule;
  read_experts(reader, family, a);
  a.initializer_range = reader.positive("initializer_range", 0.02);
  a.embedding_initializer_range = reader.positive("embedding_initializer_range", a.initializer_range);
  if (const Json* quantised = reader.find("quantization_config")) {
    a.stored = read_stored_weights(*quantised, where, a.experts.biases);
  }
  if (names_class(config, reward_class_of(family))) {
    require_one_score(reader);
    a = as_reward_model(std::move(a), where);
  }
  refuse_unknown_keys(reader, family);
  return a;
}

std::string reward_class(const Architecture& architecture) {
  const auto family = std::ranges::find(families(), architecture.model_type, &Family::model_type);
  return family == families().end() || architecture.multimodal ? "" : reward_class_of(*family);
}

Architecture as_reward_model(Architecture a, const std::string& where) {
  if (reward_class(a).empty()) {
    refuse("transformers has no reward models of this family", "a model such as llama, qwen2 or qwen3",
           a.multimodal ? "a multimodal model" : a.model_type, where, "train another model with stage: rm");
  }
  a.scores = true;
  a.tied = false;
  a.head_name = "score.weight";
  a.logit_soft_cap = 0;
  a.logits_divisor = 1;
  return a;
}

namespace {

namespace fs = std::filesystem;

/// Returns a folder at most two levels below `folder` that holds config.json, or "".
std::string model_below(const std::string& folder) {
  int left = 1000;  // entries: the folder may be the root of a file system
  std::error_code code;
  for (fs::recursive_directory_iterator at(folder, code), end; !code && at != end && left > 0;
       at.increment(code), --left) {
    if (at.depth() >= 2) at.disable_recursion_pending();
    std::error_code broken;
    if (at->path().filename() == "config.json" && fs::exists(at->path(), broken))
      return at->path().parent_path().string();
  }
  return "";
}

[[noreturn]] void refuse_folder(const std::string& folder) {
  std::error_code none;
  const bool is_folder = fs::is_directory(folder, none);
  const std::string below = is_folder ? model_below(folder) : "";
  throw Error({.what = "this is not a model folder",
               .expected = "a folder with config.json, the tokenizer's files and weights",
               .found = !is_folder                   ? "a file, not a folder"
                        : fs::is_empty(folder, none) ? "an empty folder"
                                                     : "a folder without config.json",
               .where = folder,
               .fix = below.empty()
                          ? "name a folder that `hf download` or transformers' save_pretrained wrote"
                          : "did you mean " + below + "?",
               .code = ExitCode::usage});
}

}  // namespace

Architecture read_architecture(const std::string& folder) {
  const std::string path = folder + "/config.json";
  if (path_exists(folder) && !path_exists(path)) refuse_folder(folder);
  return read_architecture(read_json(path), path);
}

}  // namespace octet::model
