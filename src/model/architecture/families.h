#pragma once

#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/error.h"
#include "octet/base/json.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Whether linear layers have a bias. not_here: none, also if the key is true, because it is about other
/// biases.
enum class BiasRule { never, not_here, always, by_key };
/// Which blocks have a sliding window.
/// none: no block.
/// all: all blocks, if `sliding_window` is a number.
/// from_layer: blocks from max_window_layers on, if use_sliding_window is true.
/// all_if_used: all blocks, if use_sliding_window is true.
/// periodic: all blocks, except every `period`-th block.
/// even_below_layer: every second block below max_window_layers, if use_sliding_window is true.
/// without_rope: blocks that rotate nothing, if use_sliding_window is true.
enum class WindowRule { none, all, from_layer, all_if_used, periodic, even_below_layer, without_rope };

/// How the config.json of a family of models is read. Rules that all families share are not here.
struct Family {
  std::string_view model_type;
  std::string_view class_name;  ///< in `architectures`
  /// Whether transformers has a class of reward models: class_name with SequenceClassification in place of
  /// CausalLM.
  bool reward_class = false;
  std::string_view text_class;  ///< class of a checkpoint with only the text model; empty: none
  BiasRule qkv_bias = BiasRule::never;
  BiasRule output_bias = BiasRule::never;
  BiasRule mlp_bias = BiasRule::never;
  // Keys of config.json for these biases.
  std::string_view qkv_bias_key = "attention_bias", output_bias_key = "attention_bias",
                   mlp_bias_key = "mlp_bias";
  WindowRule window = WindowRule::none;
  std::int64_t period = 0;
  std::string_view period_key;  ///< key of config.json that overrides `period`; empty: none
  std::string_view activation_key = "hidden_act";
  double default_theta = 10000.0;
  double local_theta = 0.0;  ///< theta of the rotary embedding of windowed blocks; 0: like other blocks
  bool one_plus_weight = false;
  bool qk_norm = false;
  bool qk_norm_of_all_heads = false;  ///< with qk_norm
  std::string_view qk_norm_key;       ///< key of config.json that turns norms on; empty: none
  bool partial_rotary = false;        ///< partial_rotary_factor is read
  bool interleaved_rotary = false;
  bool clip_key = false;  ///< clip_qkv is read; it must be null
  bool sublayer_norms = false;
  bool layer_norm = false;
  bool norm_bias = false;  ///< with layer_norm
  bool parallel = false;
  bool gated = true;
  bool fused_qkv = false;         ///< Architecture::fused_qkv
  bool fused_gate_up = false;     ///< Architecture::fused_gate_up
  bool needs_window = false;      ///< sliding_window must be a number
  bool scaled_embedding = false;  ///< by the square root of the hidden size
  bool query_scalar = false;      ///< query_pre_attn_scalar replaces head_dim in the attention scale
  bool experts = false;           ///< keys of a mixture of experts are read
  bool uniform_experts = false;   ///< every block has experts of `intermediate_size`
  bool mixtral_experts = false;   ///< normalised weights and Mixtral's tensor names
  /// Normalised weights, biases of routers and experts, clamped activations, and gpt-oss's tensor names.
  bool biased_experts = false;
  bool attention_sinks = false;
  bool scaled_rope = false;  ///< rope_parameters or rope_scaling must be there
  /// The router of DeepSeek-V3 with its keys: n_routed_experts, n_group, … The first first_k_dense_replace
  /// blocks are dense, and n_shared_experts have no gate.
  bool sigmoid_router = false;
  /// The router of DeepSeek-V2 with its keys: as of sigmoid_router, with topk_method and softmax scores.
  bool softmax_router = false;
  bool block_list = false;                ///< with sigmoid_router: mlp_layer_types has the dense blocks
  bool shared_expert = false;             ///< shared_expert_intermediate_size is read
  bool soft_caps = false;                 ///< final_logit_softcapping is read
  bool attention_cap = false;             ///< attn_logit_softcapping is read
  std::string_view defaults;              ///< default values of the class for missing keys: a JSON object
  std::vector<std::string_view> ignored;  ///< keys that transformers does not read in this family
  bool input_norms = true;                ///< norms before attention and MLP
  bool gelu_is_tanh = false;              ///< hidden_act "gelu" is the tanh approximation
  bool multipliers = false;               ///< of embedding, attention, residual and logits are read
  /// no_rope_layers, or no_rope_layer_interval, has the blocks that rotate nothing.
  bool rope_by_layer = false;
  bool rope_in_windows = false;  ///< if the model has a window, only blocks with it rotate
  bool norm_last = false;        ///< with qk_norm: after the rotary embedding, under the names of HunYuan
  bool rope_alpha = false;       ///< `alpha` of a dynamic rotary embedding is read
  /// local_theta is the default of both bases. The key rope_theta alone may not differ from it.
  bool one_theta = false;
  bool query_beta = false;  ///< llama_4_scaling_beta is read
  /// original_max_position_embeddings is read outside of rope_parameters, and older names of longrope.
  bool phi3_rope = false;
  ModuleNames names;
  std::string_view norm_eps_key = "rms_norm_eps";
  std::string_view logit_scale_key;  ///< key of the factor of logits; empty: none
  std::string_view text_model;  ///< family of `text_config`; this row then has its `defaults`; empty: none
  bool any_text_model = false;  ///< text_config may be of any family; `defaults` are of `text_model`
  bool flat_text = false;       ///< without text_config, the keys of the text model are in the whole config
  /// With text_model: older files name the text model "model.", and the head "lm_head".
  bool unprefixed_text = false;
  /// Multimodal RoPE: mrope_section and mrope_interleaved are read. All three positions of a text token are
  /// equal, so that it is the usual RoPE (Qwen2-VL, arXiv:2409.12191).
  bool multimodal_rope = false;
  // The gated delta rule (Architecture::delta) in blocks of linear_attention.
  bool delta_rule = false;
  bool grouped_delta = false;  ///< DeltaShape::grouped
  double least_decay = 0;      ///< DeltaShape::least_decay
  bool output_gate = false;    ///< Architecture::output_gate; attn_output_gate must be true or absent
  /// Multi-head latent attention (Architecture::latent): kv_lora_rank, q_lora_rank and sizes of heads are
  /// read.
  bool latents = false;
  /// Gemma 4: layers with full attention have heads of another size (read_heads_by_layer()). Values have a
  /// norm, scores have no scale, and blocks have output scales.
  bool heads_by_layer = false;
};

const std::vector<Family>& families();

/// A family that needs a part that Octet does not have.
struct RefusedFamily {
  std::string_view model_type;
  std::string_view part;
};
const std::vector<RefusedFamily>& refused_families();

/// Whether a key of config.json has no effect on Octet's results (dates, token ids, generation defaults, …),
/// or is not read by transformers.
bool is_harmless_key(std::string_view key);

/// A key that changes the mathematics, and its neutral value.
struct NeutralKey {
  std::string_view key;
  double neutral;
  std::string_view meaning;
  bool trains_without = false;  ///< whether training with the neutral value is sensible
};
const std::vector<NeutralKey>& neutral_keys();

// Reads keys of config.json by name and within bounds, and records which keys were read.

// Bounds far above any real model and low enough that every product of sizes fits 63 bits.
inline constexpr std::int64_t kMaxVocabulary = std::int64_t{1} << 24;
inline constexpr std::int64_t kMaxWidth = std::int64_t{1} << 20;
inline constexpr std::int64_t kMaxLayers = 4096;
inline constexpr std::int64_t kMaxHeads = 4096;
inline constexpr std::int64_t kMaxHeadDim = 4096;
inline constexpr std::int64_t kMaxPositions = std::int64_t{1} << 31;

inline constexpr const char* kOtherModel = "if the file was changed, fetch it again; else use another model";

[[noreturn]] inline void refuse(const std::string& what, const std::string& expected,
                                const std::string& found, const std::string& where,
                                const std::string& fix = kOtherModel) {
  throw Error({.what = what,
               .expected = expected,
               .found = found,
               .where = where,
               .fix = fix,
               .code = ExitCode::usage});
}

/// Reads keys and records which were read.
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
  /// Reads a number within bounds. It, and values computed from it, stay finite and above 0 in fp32.
  double positive(const std::string& key, double fallback, double low = 1e-30, double high = 1e30) {
    seen_.insert(key);
    const double value = json_number(object_, key, fallback, where_);
    if (!(value >= low && value <= high)) {
      std::ostringstream range;
      range << "a number from " << low << " to " << high;
      refuse("'" + key + "' cannot be used", range.str(), short_json(*object_.find(key)), where_);
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

/// Returns the shapes of all blocks: windows, and the blocks that rotate nothing.
std::vector<BlockShape> read_blocks(Reader& config, const Family& family, std::int64_t layers);

/// Reads the heads of delta rules into `architecture`, which has its blocks and its activation.
void read_delta_rule(Reader& config, const Family& family, Architecture& architecture);

/// Reads the latents of attention, the heads and the dimensions that rotate.
void read_latents(Reader& config, Architecture& architecture);

/// Reads the heads of layers with full attention into the blocks of `architecture`, and which of them use
/// keys as values. Refuses the parts of Gemma 4 that Octet does not have.
void read_heads_by_layer(Reader& config, Architecture& architecture);

/// Returns the factor of attention's scores with latents that the keys of YaRN add: the square of the scale
/// of mscale_all_dim (DeepSeek-V2, as in transformers).
double score_factor_of_latents(Reader& config, const Family& family, const Rope& rope);

/// Reads `experts`, and which blocks have experts, as Qwen3MoeDecoderLayer of transformers does.
void read_experts(Reader& config, const Family& family, Architecture& architecture);

/// Returns the rotary embeddings of a config. Most families have one. Families with another theta for
/// windowed layers have two: first for the full layers, then for the windowed layers.
/// `rotated`: dimensions of a head that rotate.
std::vector<Rope> read_ropes(Reader& config, const Family& family, std::int64_t rotated);

}  // namespace octet::model
