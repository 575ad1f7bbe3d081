// The rotary embeddings of a config.json, with the keys of transformers 4 (rope_theta, rope_scaling,
// rope_local_base_freq) or 5 (rope_parameters, for all layers or for each kind of layer).
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "families.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"

namespace octet::model {
namespace {

// Long wavelengths are scaled, short wavelengths are kept, and wavelengths between them are interpolated
// (transformers, modeling_rope_utils.py, _compute_llama3_parameters).
float llama3_frequency(const Rope& rope, float f) {
  const double wavelength = 2.0 * std::numbers::pi / static_cast<double>(f);
  const auto old = static_cast<double>(rope.original_max_positions);
  if (wavelength > old / rope.low_freq_factor)
    return static_cast<float>(static_cast<double>(f) / rope.factor);
  if (wavelength < old / rope.high_freq_factor) return f;
  const double smooth =
      (old / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return static_cast<float>((1.0 - smooth) * static_cast<double>(f) / rope.factor +
                            smooth * static_cast<double>(f));
}

// Returns the fraction of each frequency that YaRN divides by the factor ("NTK by parts", section 3.2 of the
// paper). It is 0 up to the dimension with beta_fast rotations within the original context. It is 1 from the
// dimension with beta_slow rotations on, and linear between them.
std::vector<float> yarn_ramp(const Rope& rope, std::int64_t head_dim) {
  const auto dimension_of = [&](double rotations) {
    const double turns = static_cast<double>(rope.original_max_positions) / (2.0 * std::numbers::pi);
    return static_cast<double>(head_dim) * std::log(turns / rotations) / (2.0 * std::log(rope.theta));
  };
  double low = dimension_of(rope.beta_fast), high = dimension_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(head_dim - 1));
  if (low == high) high += 0.001;
  std::vector<float> ramp(static_cast<std::size_t>(head_dim / 2));
  for (std::size_t i = 0; i < ramp.size(); ++i) {
    const float x = (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    ramp[i] = std::clamp(x, 0.0f, 1.0f);
  }
  return ramp;
}

}  // namespace

std::vector<float> inverse_frequencies(const Rope& rope, std::int64_t head_dim, bool long_documents) {
  std::vector<float> frequencies(static_cast<std::size_t>(head_dim / 2));
  const std::vector<float> ramp =
      rope.kind == RopeKind::yarn ? yarn_ramp(rope, head_dim) : std::vector<float>();
  for (std::size_t i = 0; i < frequencies.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(head_dim);
    const float power = std::pow(static_cast<float>(rope.theta), exponent);
    float f = 1.0f / power;
    switch (rope.kind) {
      case RopeKind::standard:
      case RopeKind::dynamic:
        break;
      case RopeKind::longrope:
        f = 1.0f / (static_cast<float>((long_documents ? rope.long_factors : rope.short_factors)[i]) * power);
        break;
      case RopeKind::none:
        f = 0.0f;
        break;
      case RopeKind::proportional: {
        const double kept = std::floor(rope.kept_part * static_cast<double>(head_dim) / 2.0);
        f = static_cast<double>(i) < kept ? f / static_cast<float>(rope.factor) : 0.0f;
        break;
      }
      case RopeKind::linear:
        f /= static_cast<float>(rope.factor);
        break;
      case RopeKind::llama3:
        f = llama3_frequency(rope, f);
        break;
      case RopeKind::yarn: {
        const float stretched = 1.0f / (static_cast<float>(rope.factor) * power);
        const float kept = 1.0f - ramp[i];
        f = stretched * (1.0f - kept) + f * kept;
        break;
      }
    }
    frequencies[i] = f;
  }
  return frequencies;
}

namespace {

/// Returns the scale of a stretched context in YaRN (Peng et al. 2023, arXiv:2309.00071), with a coefficient.
double yarn_scale(double factor, double coefficient) {
  return factor <= 1.0 ? 1.0 : 0.1 * coefficient * std::log(factor) + 1.0;
}

/// Returns a coefficient of yarn_scale(); 0: none. Its bound keeps attention_factor within its own bounds.
double yarn_coefficient(Reader& reader, const std::string& key) {
  return reader.positive(key, 0.0, 0.0, 100.0);
}

double yarn_attention_factor(Reader& reader, double factor) {
  const double some = yarn_coefficient(reader, "mscale"), all = yarn_coefficient(reader, "mscale_all_dim");
  const double inferred =
      some > 0 && all > 0 ? yarn_scale(factor, some) / yarn_scale(factor, all) : yarn_scale(factor, 1.0);
  return reader.positive("attention_factor", inferred, 1e-3, 1e3);
}

void read_yarn(Reader& reader, std::int64_t max_positions, Rope& rope) {
  rope.original_max_positions = reader.size("original_max_position_embeddings", max_positions, kMaxPositions);
  rope.beta_fast = reader.positive("beta_fast", 32.0, 1e-3, 1e6);
  rope.beta_slow = reader.positive("beta_slow", 1.0, 1e-3, 1e6);
  rope.truncate = reader.boolean("truncate", true);
  rope.attention_factor = yarn_attention_factor(reader, rope.factor);
  if (!(rope.beta_fast >= rope.beta_slow)) {
    refuse("'beta_fast' cannot be used", "at least beta_slow", short_json(reader.object()), reader.where());
  }
  if (!(rope.theta > 1.0)) {
    refuse("'rope_theta' cannot be used", "more than 1", short_json(reader.object()), reader.where());
  }
}

void read_llama3(Reader& reader, Rope& rope) {
  rope.low_freq_factor = reader.positive("low_freq_factor", 1.0, 1e-3, 1e6);
  rope.high_freq_factor = reader.positive("high_freq_factor", 4.0, 1e-3, 1e6);
  rope.original_max_positions = reader.size("original_max_position_embeddings", kMaxPositions);
  if (!(rope.high_freq_factor > rope.low_freq_factor)) {
    refuse("'high_freq_factor' cannot be used", "more than low_freq_factor", short_json(reader.object()),
           reader.where());
  }
}

struct RopeDefaults {
  double theta;
  std::int64_t max_positions;  ///< of the model
  std::int64_t rotated;        ///< dimensions of a head that rotate
};

/// Reads a list of positive divisors, one for each pair of dimensions.
std::vector<double> read_divisors(Reader& reader, const std::string& key, std::int64_t count) {
  const Json* list = reader.find(key);
  const auto positive = [](const Json& one) {
    return one.is_number() && one.get<double>() >= 1e-6 && one.get<double>() <= 1e6;
  };
  if (list == nullptr || !list->is_array() || std::ssize(*list) != count ||
      !std::ranges::all_of(*list, positive)) {
    refuse("'" + key + "' cannot be used",
           "a list of " + std::to_string(count) +
               " numbers above 0, one for each pair of dimensions that rotates",
           list == nullptr    ? "nothing"
           : list->is_array() ? std::to_string(list->size()) + " elements: " + short_json(*list)
                              : short_json(*list),
           reader.where());
  }
  return list->get<std::vector<double>>();
}

// The default of the attention factor is that of transformers, _compute_longrope_parameters.
void read_longrope(Reader& reader, const Family& family, const RopeDefaults& defaults, std::int64_t original,
                   Rope& rope) {
  if (family.qk_norm && !family.qk_norm_of_all_heads) {
    refuse("the rotary embedding 'longrope' is not supported together with norms of heads",
           "default, linear, llama3 or yarn", "longrope", reader.where());
  }
  // Phi-3 has it outside of this object. Otherwise, it is the length of the model.
  const std::int64_t inner =
      reader.size("original_max_position_embeddings", defaults.max_positions, kMaxPositions);
  rope.original_max_positions = original > 0 ? original : inner;
  const auto before = static_cast<double>(rope.original_max_positions);
  rope.factor = reader.positive("factor", static_cast<double>(defaults.max_positions) / before, 1e-6, 1e9);
  const double inferred =
      rope.factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(rope.factor) / std::log(before));
  rope.attention_factor =
      reader.positive("attention_factor", std::isfinite(inferred) ? inferred : 1.0, 1e-3, 1e3);
  rope.short_factors = read_divisors(reader, "short_factor", defaults.rotated / 2);
  rope.long_factors = read_divisors(reader, "long_factor", defaults.rotated / 2);
}

/// `alpha` of HunYuanDenseV1RotaryEmbedding stretches the base once and for all.
void read_dynamic(Reader& reader, const Family& family, const RopeDefaults& defaults, Rope& rope) {
  const double alpha = family.rope_alpha ? reader.positive("alpha", 0.0, 0.0, 1e12) : 0.0;
  if (defaults.rotated < 4) {
    refuse("the rotary embedding 'dynamic' needs more dimensions", "four or more dimensions that rotate",
           std::to_string(defaults.rotated), reader.where());
  }
  if (alpha == 0.0) {
    rope.original_max_positions = defaults.max_positions;
    return;
  }
  const auto dim = static_cast<double>(defaults.rotated);
  rope.kind = RopeKind::standard;
  rope.factor = 1.0;
  rope.theta *= std::pow(alpha, dim / (dim - 2.0));
}

/// Keys of other RoPE types, and keys of other programs. transformers ignores them with a warning.
bool is_unread_key(std::string_view key) {
  static constexpr auto kKeys = std::to_array<std::string_view>(
      {"attention_factor", "attn_factor", "beta_fast", "beta_slow", "extrapolation_factor", "finetuned",
       "high_freq_factor", "low_freq_factor", "mscale", "mscale_all_dim", "original_max_position_embeddings",
       "truncate"});
  return std::ranges::find(kKeys, key) != kKeys.end();
}

/// Checks the keys of a multimodal RoPE. They have no effect on text.
void read_sections(Reader& reader, std::int64_t sum) {
  reader.boolean("mrope_interleaved", false);
  const Json* sections = reader.find("mrope_section");
  if (sections == nullptr) return;
  bool fits = sections->is_array() && sections->size() == 3;
  std::int64_t found = 0;
  for (std::size_t i = 0; fits && i < 3; ++i) {
    const Json& section = (*sections)[i];
    fits = section.is_number_integer() && section >= 0 && section <= sum;
    if (fits) found += section.get<std::int64_t>();
  }
  if (fits && found == sum) return;
  refuse("'mrope_section' cannot be used",
         "three whole numbers with the sum " + std::to_string(sum) + ", half the size of a head",
         short_json(*sections), reader.where());
}

/// `original`: original_max_position_embeddings outside of the object; 0: none.
Rope read_rope_object(const Json& object, const RopeDefaults& defaults, const std::string& where,
                      const Family& family, std::int64_t original = 0) {
  if (!object.is_object())
    refuse("the rotary embedding cannot be read", "an object", short_json(object), where);
  Reader reader(object, where);
  Rope rope;
  rope.theta = reader.positive("rope_theta", defaults.theta, 1.0, 1e15);
  const std::string old_kind = reader.text("type", "");
  std::string kind = reader.text("rope_type", old_kind.empty() ? "default" : old_kind);
  if (family.multimodal_rope) {
    read_sections(reader, defaults.rotated / 2);
    if (kind == "mrope") kind = "default";
  }
  // The first published files of Phi-3 have these names. transformers replaces them in this family.
  if (family.phi3_rope && (kind == "su" || kind == "yarn")) kind = "longrope";
  if (kind == "linear") {
    rope.kind = RopeKind::linear;
  } else if (kind == "proportional" && family.heads_by_layer) {
    rope.kind = RopeKind::proportional;
    rope.kept_part = reader.positive("partial_rotary_factor", 1.0, 1e-6, 1.0);
    rope.factor = reader.positive("factor", 1.0, 1e-3, 1e6);
  } else if (kind == "llama3") {
    rope.kind = RopeKind::llama3;
  } else if (kind == "yarn") {
    rope.kind = RopeKind::yarn;
  } else if (kind == "dynamic") {
    rope.kind = RopeKind::dynamic;
  } else if (kind == "longrope") {
    rope.kind = RopeKind::longrope;
  } else if (kind != "default") {
    refuse("the rotary embedding '" + kind + "' is not supported",
           "default, linear, llama3, yarn, dynamic or longrope", kind, where);
  }
  if (rope.kind == RopeKind::longrope) {
    read_longrope(reader, family, defaults, original, rope);
  } else if (rope.kind != RopeKind::standard && rope.kind != RopeKind::proportional) {
    if (reader.find("factor") == nullptr) refuse("'factor' is missing", "a number", "nothing", where);
    rope.factor = reader.positive("factor", 1.0, 1e-3, 1e6);
  }
  if (rope.kind == RopeKind::llama3) read_llama3(reader, rope);
  if (rope.kind == RopeKind::yarn) read_yarn(reader, defaults.max_positions, rope);
  if (rope.kind == RopeKind::dynamic) read_dynamic(reader, family, defaults, rope);
  if (family.query_beta) {
    rope.query_beta = reader.positive("llama_4_scaling_beta", 0.0, 0.0, 1e3);
    if (rope.query_beta > 0) {
      rope.original_max_positions =
          reader.size("original_max_position_embeddings", defaults.max_positions, kMaxPositions);
    }
    reader.find("max_position_embeddings");  // repeats the model's
  }
  for (const auto& [key, value] : object.items()) {
    if (reader.seen().contains(key) || value.is_null()) continue;
    if (key == "partial_rotary_factor" &&
        (family.partial_rotary || (value.is_number() && value.get<double>() == 1.0)))
      continue;
    if (is_unread_key(key)) continue;
    refuse("'" + key + "' of the rotary embedding is not supported", "keys of rope_type " + kind,
           short_json(value), where);
  }
  return rope;
}

/// Returns the part of rope_parameters for one kind of layer, or all of it if it applies to all layers.
const Json* parameters_of(Reader& config, const Family& family, const std::string& kind) {
  const Json* parameters = config.find("rope_parameters");
  if (parameters == nullptr || !parameters->is_object()) return parameters;
  const std::string where = config.where() + ": rope_parameters";
  const bool by_kind = parameters->contains("full_attention") || parameters->contains("sliding_attention");
  if (!by_kind) {
    if (family.local_theta > 0 && !parameters->empty()) {
      refuse("the rotary embeddings have no kind of layer", "full_attention and sliding_attention",
             short_json(*parameters), where);
    }
    return parameters;
  }
  for (const auto& [key, value] : parameters->items()) {
    if (key != "full_attention" && key != "sliding_attention") {
      refuse("a kind of layer is not supported", "full_attention or sliding_attention", key, where);
    }
    if (family.local_theta <= 0 && value != parameters->front()) {
      refuse("rotary embeddings that differ between layers are not supported by this family",
             "one for all layers", key, where);
    }
  }
  const auto it = parameters->find(kind);
  if (it == parameters->end() && family.local_theta <= 0) return &parameters->front();
  return it == parameters->end() || it->is_null() ? nullptr : &*it;
}

/// Returns rope_theta of rope_parameters as it is written.
double base_of(const Json& parameters, double fallback) {
  const auto found = parameters.find("rope_theta");
  return found != parameters.end() && found->is_number() ? found->get<double>() : fallback;
}

}  // namespace

double score_factor_of_latents(Reader& config, const Family& family, const Rope& rope) {
  const Json* object = parameters_of(config, family, "full_attention");
  if (object == nullptr) object = config.find("rope_scaling");
  if (rope.kind == RopeKind::standard || object == nullptr) return 1.0;
  Reader keys(*object, config.where() + ": the rotary embedding");
  const double scale = yarn_coefficient(keys, "mscale_all_dim");
  return scale > 0 ? std::pow(yarn_scale(rope.factor, scale), 2) : 1.0;
}

std::vector<Rope> read_ropes(Reader& config, const Family& family, std::int64_t rotated) {
  const std::int64_t max_positions = config.size("max_position_embeddings", 2048, kMaxPositions);
  const double theta = config.positive("rope_theta", family.default_theta, 1.0, 1e15);
  const Json* scaling = config.find("rope_scaling");
  const Json* parameters = parameters_of(config, family, "full_attention");
  // In this family, transformers reads it outside of rope_parameters, with a default.
  const std::int64_t original =
      family.phi3_rope ? config.size("original_max_position_embeddings", 4096, kMaxPositions) : 0;
  const RopeDefaults defaults{theta, max_positions, rotated};
  Rope rope{.theta = theta};
  if (scaling != nullptr)
    rope = read_rope_object(*scaling, defaults, config.where() + ": rope_scaling", family, original);
  if (parameters != nullptr) {
    const Rope v5 =
        read_rope_object(*parameters, defaults, config.where() + ": rope_parameters", family, original);
    if (scaling != nullptr && !(v5 == rope)) {
      refuse("rope_parameters and rope_scaling contradict each other", "one of them",
             short_json(*parameters) + " and " + short_json(*scaling), config.where(),
             "keep rope_parameters");
    }
    if (config.find("rope_theta") != nullptr && base_of(*parameters, theta) != theta) {
      refuse("rope_parameters and rope_theta contradict each other", "one base", short_json(*parameters),
             config.where(), "keep rope_parameters");
    }
    rope = v5;
  }
  if (family.local_theta <= 0) return {rope};

  const Json* sliding = parameters_of(config, family, "sliding_attention");
  if (family.one_theta && sliding == nullptr && theta != family.local_theta) {
    refuse(
        "'rope_theta' of this family means two things: transformers 4 reads it for all layers, and "
        "transformers 5 for full-attention layers alone",
        "rope_parameters, with a rope_theta for full_attention and one for sliding_attention",
        "rope_theta: " + short_json(Json(theta)), config.where(), "write rope_parameters in this file");
  }
  const double local_theta = family.one_theta
                                 ? family.local_theta
                                 : config.positive("rope_local_base_freq", family.local_theta, 1.0, 1e15);
  Rope local{.theta = local_theta};
  if (sliding != nullptr) {
    local = read_rope_object(*sliding, {local_theta, max_positions, rotated},
                             config.where() + ": rope_parameters", family);
    if (!family.one_theta && config.find("rope_local_base_freq") != nullptr && local.theta != local_theta) {
      refuse("rope_parameters and rope_local_base_freq contradict each other", "one base",
             short_json(*sliding), config.where(), "keep rope_parameters");
    }
  }
  return {rope, local};
}

}  // namespace octet::model
