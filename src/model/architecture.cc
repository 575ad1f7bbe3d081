#include "octet/model/architecture.h"

#include <cmath>
#include <set>
#include <sstream>
#include <tuple>

#include "families.h"
#include "octet/base/error.h"
#include "octet/base/strings.h"

namespace octet::model {
namespace {

// Bounds far above any real model and low enough that every product of sizes fits 63 bits.
constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;
constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
constexpr std::int64_t kMaxLayers = 4096;
constexpr std::int64_t kMaxHeads = 4096;
constexpr std::int64_t kMaxHeadDim = 4096;
constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

[[noreturn]] void refuse(const std::string& what, const std::string& expected, const std::string& found,
                         const std::string& where, const std::string& fix = "") {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = where,
               .fix = fix,
               .code = ExitCode::usage});
}

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 80) text = text.substr(0, 77) + "...";
  return text;
}

/// Reads keys and remembers which were looked at.
class Reader {
 public:
  Reader(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(const std::string& key) {
    seen_.insert(key);
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  std::int64_t size(const std::string& key, std::int64_t high) {
    if (find(key) == nullptr) {
      refuse("'" + key + "' is missing", "a whole number from 1 to " + std::to_string(high), "nothing",
             where_);
    }
    return json_int(object_, key, 0, 1, high, where_);
  }
  std::int64_t size(const std::string& key, std::int64_t fallback, std::int64_t high) {
    seen_.insert(key);
    return json_int(object_, key, fallback, 1, high, where_);
  }
  /// A number that stays finite and above 0 in fp32, and so does what is computed from it.
  double positive(const std::string& key, double fallback, double low = 1e-30, double high = 1e30) {
    seen_.insert(key);
    const double value = json_number(object_, key, fallback, where_);
    if (!(value >= low && value <= high)) {
      std::ostringstream range;
      range << "a number from " << low << " to " << high;
      refuse("'" + key + "' cannot be used", range.str(), shown(*object_.find(key)), where_);
    }
    return value;
  }
  bool boolean(const std::string& key, bool fallback) {
    seen_.insert(key);
    return json_bool(object_, key, fallback, where_);
  }
  std::string text(const std::string& key, const std::string& fallback) {
    seen_.insert(key);
    return json_string(object_, key, fallback, where_);
  }
  const std::set<std::string>& seen() const { return seen_; }
  const Json& object() const { return object_; }
  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_;
  std::set<std::string> seen_;
};

const Family& family_of(const Json& config, const std::string& where) {
  const std::string type = json_string(config, "model_type", "", where);
  std::string class_name;
  if (const auto it = config.find("architectures");
      it != config.end() && it->is_array() && !it->empty() && it->front().is_string()) {
    class_name = it->front().get<std::string>();
  }
  std::string known;
  for (const std::string& name : known_families()) known += (known.empty() ? "" : ", ") + name;
  for (const Family& family : families()) {
    if (type != family.model_type) continue;
    if (!family.unsupported.empty()) {
      refuse("models of type '" + type + "' are not supported: they have " + std::string(family.unsupported),
             "model_type: one of " + known, type, where);
    }
    if (!class_name.empty() && class_name != family.class_name) {
      refuse("the architecture of this model is not known", std::string(family.class_name), class_name,
             where + ": architectures");
    }
    return family;
  }
  refuse(
      "the architecture of this model is not known", "model_type: one of " + known,
      type.empty() ? "no model_type" : "'" + type + "'" + (class_name.empty() ? "" : " (" + class_name + ")"),
      where);
}

Rope read_rope_object(const Json& object, double theta, const std::string& where) {
  if (!object.is_object()) refuse("the rotary embedding cannot be read", "an object", shown(object), where);
  Reader reader(object, where);
  Rope rope;
  rope.theta = reader.positive("rope_theta", theta, 1.0, 1e15);
  const std::string old_kind = reader.text("type", "");
  const std::string kind = reader.text("rope_type", old_kind.empty() ? "default" : old_kind);
  if (kind == "default") {
    rope.kind = RopeKind::standard;
  } else if (kind == "linear" || kind == "llama3") {
    rope.kind = kind == "linear" ? RopeKind::linear : RopeKind::llama3;
    if (reader.find("factor") == nullptr) refuse("'factor' is missing", "a number", "nothing", where);
    rope.factor = reader.positive("factor", 1.0, 1e-3, 1e6);
  } else {
    refuse("the rotary embedding '" + kind + "' is not supported", "default, linear or llama3", kind, where);
  }
  if (rope.kind == RopeKind::llama3) {
    rope.low_freq_factor = reader.positive("low_freq_factor", 1.0, 1e-3, 1e6);
    rope.high_freq_factor = reader.positive("high_freq_factor", 4.0, 1e-3, 1e6);
    rope.original_max_positions = reader.size("original_max_position_embeddings", kMaxPositions);
    if (!(rope.high_freq_factor > rope.low_freq_factor)) {
      refuse("'high_freq_factor' cannot be used", "more than low_freq_factor", shown(object), where);
    }
  }
  for (const auto& [key, value] : object.items()) {
    if (reader.seen().contains(key) || value.is_null()) continue;
    if (key == "partial_rotary_factor" && value.is_number() && value.get<double>() == 1.0) continue;
    // Other kinds' keys stand beside "default" in some files; they change nothing there.
    if (key == "original_max_position_embeddings") continue;
    refuse("'" + key + "' of the rotary embedding is not supported", "keys of rope_type " + kind,
           shown(value), where);
  }
  return rope;
}

Rope read_rope(Reader& config, const Family& family) {
  const double theta = config.positive("rope_theta", family.default_theta, 1.0, 1e15);
  const Json* scaling = config.find("rope_scaling");
  const Json* parameters = config.find("rope_parameters");
  if (parameters != nullptr && parameters->is_object()) {
    if (const auto it = parameters->find("full_attention"); it != parameters->end()) {
      for (const auto& [key, value] : parameters->items()) {
        if (value != *it) {
          refuse("rotary embeddings that differ between layers are not supported", "one for all layers", key,
                 config.where() + ": rope_parameters");
        }
      }
      parameters = &*it;
    }
  }
  Rope rope{.theta = theta};
  if (scaling != nullptr) rope = read_rope_object(*scaling, theta, config.where() + ": rope_scaling");
  if (parameters != nullptr) {
    const Rope v5 = read_rope_object(*parameters, theta, config.where() + ": rope_parameters");
    if (scaling != nullptr && !(v5 == rope)) {
      refuse("rope_parameters and rope_scaling contradict each other", "one of them",
             shown(*parameters) + " and " + shown(*scaling), config.where(), "keep rope_parameters");
    }
    if (config.find("rope_theta") != nullptr && v5.theta != theta) {
      refuse("rope_parameters and rope_theta contradict each other", "one base", shown(*parameters),
             config.where(), "keep rope_parameters");
    }
    rope = v5;
  }
  return rope;
}

bool read_bias(Reader& config, BiasRule rule, const std::string& key) {
  // A family without the key ignores it in transformers as well, unless it asks for what is not there.
  const bool asked = config.boolean(key, false);
  switch (rule) {
    case BiasRule::always:
      return true;
    case BiasRule::by_key:
      return asked;
    case BiasRule::never:
      break;
  }
  if (asked) refuse("'" + key + "' is not supported by this family", "false", "true", config.where());
  return false;
}

std::vector<BlockShape> read_blocks(Reader& config, const Family& family, std::int64_t layers) {
  std::vector<BlockShape> blocks(static_cast<std::size_t>(layers));
  // An explicit null means no window; only an absent key has the family's default.
  const bool absent = !config.object().contains("sliding_window");
  const Json* found = config.find("sliding_window");
  std::int64_t window = absent ? family.default_window : 0;
  if (found != nullptr) window = config.size("sliding_window", kMaxPositions);
  const bool use = config.boolean("use_sliding_window", family.window == WindowRule::all);
  const std::int64_t first =
      json_int(config.object(), "max_window_layers", 28, 0, kMaxPositions, config.where());
  if (family.window == WindowRule::none) {
    if (found != nullptr || use) {
      refuse("a sliding window is not supported by this family", "no 'sliding_window'",
             found != nullptr ? shown(*found) : "use_sliding_window: true", config.where());
    }
    window = 0;
  }
  const Json* types = config.find("layer_types");
  if (types != nullptr && (!types->is_array() || types->size() != blocks.size())) {
    refuse("'layer_types' does not fit", "a list of " + std::to_string(layers) + " names", shown(*types),
           config.where());
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    bool sliding = family.window == WindowRule::all ||
                   (family.window == WindowRule::from_layer && use && static_cast<std::int64_t>(i) >= first);
    if (types != nullptr) {
      const Json& type = (*types)[i];
      const bool windowed = type == "sliding_attention";
      if (!windowed && type != "full_attention") {
        refuse("a kind of layer is not supported", "full_attention or sliding_attention", shown(type),
               config.where() + ": layer_types[" + std::to_string(i) + "]");
      }
      if (windowed && window == 0) {
        refuse("a layer slides without a window", "'sliding_window'", shown(type),
               config.where() + ": layer_types[" + std::to_string(i) + "]");
      }
      sliding = windowed;
    }
    if (sliding) blocks[i].window = window;
  }
  return blocks;
}

void refuse_unknown_keys(const Reader& config) {
  for (const auto& [key, value] : config.object().items()) {
    if (config.seen().contains(key) || is_harmless_key(key) || value.is_null()) continue;
    bool neutral = false;
    for (const NeutralKey& known : neutral_keys()) {
      if (key != known.key) continue;
      if (!value.is_number() || value.get<double>() != known.neutral) {
        refuse("'" + key + "' asks for what is not supported: " + std::string(known.meaning),
               std::to_string(known.neutral), shown(value), config.where());
      }
      neutral = true;
    }
    if (neutral || (value.is_boolean() && !value.get<bool>())) continue;
    std::vector<std::string> known(config.seen().begin(), config.seen().end());
    const std::string near = nearest_name(key, known);
    refuse("key '" + key + "' is not known and may change what the model computes",
           near.empty() ? "a key of this family" : "'" + near + "'", shown(value), config.where(),
           "remove it when it does not");
  }
}

}  // namespace

bool Architecture::operator==(const Architecture& other) const {
  const auto scalars = [](const Architecture& a) {
    return std::tie(a.vocabulary, a.hidden, a.intermediate, a.layers, a.heads.q_heads, a.heads.kv_heads,
                    a.heads.head_dim, a.max_positions, a.norm_eps, a.activation, a.tied, a.qkv_bias,
                    a.output_bias, a.mlp_bias, a.one_plus_weight, a.embedding_scale, a.attention_scale,
                    a.attention_soft_cap, a.logit_soft_cap, a.ropes, a.blocks, a.initializer_range,
                    a.embedding_initializer_range);
  };
  return model_type == other.model_type && scalars(*this) == scalars(other);
}

std::vector<std::string> known_families() {
  std::vector<std::string> names;
  for (const Family& family : families()) {
    if (family.unsupported.empty()) names.emplace_back(family.model_type);
  }
  return names;
}

Architecture read_architecture(const Json& config, const std::string& where) {
  if (!config.is_object()) refuse("a model's config is not an object", "{…}", shown(config), where);
  const Family& family = family_of(config, where);
  Reader reader(config, where);
  Architecture a;
  a.model_type = family.model_type;
  a.vocabulary = reader.size("vocab_size", kMaxVocabulary);
  a.hidden = reader.size("hidden_size", kMaxWidth);
  a.intermediate = reader.size("intermediate_size", kMaxWidth);
  a.layers = reader.size("num_hidden_layers", kMaxLayers);
  a.heads.q_heads = reader.size("num_attention_heads", kMaxHeads);
  a.heads.kv_heads = reader.size("num_key_value_heads", a.heads.q_heads, kMaxHeads);
  if (a.heads.q_heads % a.heads.kv_heads != 0) {
    refuse("the heads cannot be grouped", "num_attention_heads divisible by num_key_value_heads",
           std::to_string(a.heads.q_heads) + " and " + std::to_string(a.heads.kv_heads), where);
  }
  if (reader.find("head_dim") == nullptr && a.hidden % a.heads.q_heads != 0) {
    refuse("the size of a head is not known", "'head_dim', or hidden_size divisible by num_attention_heads",
           std::to_string(a.hidden) + " and " + std::to_string(a.heads.q_heads), where);
  }
  a.heads.head_dim =
      reader.size("head_dim", std::max<std::int64_t>(1, a.hidden / a.heads.q_heads), kMaxHeadDim);
  if (a.heads.head_dim % 2 != 0) {
    refuse("a rotary embedding needs heads of even size", "an even head_dim",
           std::to_string(a.heads.head_dim), where);
  }
  a.max_positions = reader.size("max_position_embeddings", 2048, kMaxPositions);
  a.norm_eps = reader.positive("rms_norm_eps", 1e-6);
  const std::string activation = reader.text(std::string(family.activation_key), "silu");
  if (activation == "silu" || activation == "swish") {
    a.activation = ops::Activation::silu;
  } else if (activation == "gelu_pytorch_tanh" || activation == "gelu_new") {
    a.activation = ops::Activation::gelu_tanh;
  } else {
    refuse("the activation is not supported", "silu or gelu_pytorch_tanh", activation,
           where + ": " + std::string(family.activation_key));
  }
  a.tied = reader.boolean("tie_word_embeddings", family.default_tied);
  a.qkv_bias = read_bias(reader, family.qkv_bias, "attention_bias");
  a.output_bias = read_bias(reader, family.output_bias, "attention_bias");
  a.mlp_bias = read_bias(reader, family.mlp_bias, "mlp_bias");
  a.attention_scale = 1.0 / std::sqrt(static_cast<double>(a.heads.head_dim));
  a.ropes = {read_rope(reader, family)};
  a.blocks = read_blocks(reader, family, a.layers);
  a.initializer_range = reader.positive("initializer_range", 0.02);
  a.embedding_initializer_range = reader.positive("embedding_initializer_range", a.initializer_range);
  refuse_unknown_keys(reader);
  return a;
}

Architecture read_architecture(const std::string& folder) {
  const std::string path = folder + "/config.json";
  return read_architecture(read_json(path), path);
}

}  // namespace octet::model
