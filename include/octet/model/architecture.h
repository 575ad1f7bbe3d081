// The model room. It defines the architecture of a model (read from config.json), the memory layout of its
// parameters (layout.h), the interface that supplies them (parameter_source.h), the work of its layers
// (work.h) and the transformer core (transformer.h). The core consists of layers that own their tensors
// (src/model/layers). It is independent of sharding, of the device and of the FP8 recipe. A family of models
// is one row of a table (src/model/architecture/families.cc) plus features of struct Architecture.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/model/share.h"
#include "octet/model/tuning.h"
#include "octet/ops/delta_rule.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/latent_heads.h"
#include "octet/ops/routing.h"
#include "octet/ops/types.h"

namespace octet::model {

enum class RopeKind { standard, linear, llama3, yarn, none, dynamic, longrope, proportional };

/// Frequencies of a rotary embedding (Su et al. 2021) and their scaling for longer contexts.
struct Rope {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  double factor = 1.0;                      ///< linear, llama3, yarn, proportional
  double low_freq_factor = 1.0;             ///< llama3
  double high_freq_factor = 4.0;            ///< llama3
  std::int64_t original_max_positions = 0;  ///< llama3, yarn, dynamic, longrope; with query_beta
  double beta_fast = 32.0;                  ///< yarn: rotations above which a frequency is kept
  double beta_slow = 1.0;                   ///< yarn: rotations below which it is divided by the factor
  bool truncate = true;                     ///< yarn: bounds of the ramp are whole dimensions
  double attention_factor = 1.0;            ///< yarn, longrope: multiplies cosines and sines
  /// longrope: divisors of the frequencies, [rotated / 2], in documents of up to original_max_positions
  /// tokens, and in longer ones (Ding et al. 2024, arXiv:2402.13753).
  std::vector<double> short_factors, long_factors;
  /// Rotated queries at position p are multiplied by 1 + query_beta * log(1 + floor(p /
  /// original_max_positions)), as in Llama 4.
  double query_beta = 0.0;
  /// proportional: the part of the frequencies of a whole head that is kept. The others are 0 (Gemma 4).
  double kept_part = 1.0;
  bool operator==(const Rope&) const = default;
};

/// BlockShape::rope of a block that rotates nothing.
inline constexpr int kNoRope = -1;

/// Properties that differ between blocks.
struct BlockShape {
  std::int64_t window = 0;        ///< a token sees itself and the window - 1 tokens before it; 0: all
  int rope = 0;                   ///< index into Architecture::ropes, or kNoRope
  std::int64_t intermediate = 0;  ///< width of its MLP; 0: Architecture::intermediate
  bool mixes_experts = false;     ///< Architecture::experts replaces its MLP
  bool delta_rule = false;        ///< Architecture::delta replaces attention
  std::int64_t head_dim = 0;      ///< size of its heads; 0: of Architecture::heads
  std::int64_t kv_heads = 0;      ///< number of its KV heads; 0: of Architecture::heads
  /// Its values are the projected keys, before norm and rotation. It has no projection of values.
  bool keys_as_values = false;
  bool operator==(const BlockShape&) const = default;
};

/// Hugging Face names of the modules of a block. An empty name stands for the usual one.
struct ModuleNames {
  std::string_view input_norm, attention_output_norm, mlp_norm, mlp_output_norm;
  std::string_view up, down;  ///< without gates; usually mlp.up_proj and mlp.down_proj
  bool operator==(const ModuleNames&) const = default;
};

/// A mixture of experts in place of an MLP (Shazeer et al. 2017, arXiv:1701.06538). The experts are gated
/// MLPs. A router selects some of them for each token.
struct ExpertShape {
  /// Names of tensors in Hugging Face's files: "mlp.gate" and "mlp.experts.0.gate_proj",
  /// "block_sparse_moe.gate" and "block_sparse_moe.experts.0.w1", or "mlp.router" and the parts of stacked
  /// tensors (weights/expert_stacks.h).
  enum class Names { mlp, mixtral, gpt_oss };
  std::int64_t count = 0;   ///< number of experts; 0: no mixture
  std::int64_t taken = 0;   ///< experts per token
  std::int64_t width = 0;   ///< intermediate size of one expert
  bool normalised = false;  ///< the weights of a token's experts are divided by their sum
  /// Coefficient of the load-balancing loss that training adds (ops/routing.h); 0: none.
  double balance = 0;
  Names names = Names::mlp;
  /// Width of an additional expert for all tokens; 0: none. A gate weights it, if `shared_gate`.
  std::int64_t shared = 0;
  bool shared_gate = true;
  // The router (ops/routing.h).
  ops::RouterScores scores = ops::RouterScores::softmax;
  double scale = 1;                           ///< of the weights of a token's experts
  std::int64_t groups = 1, taken_groups = 1;  ///< only experts of some groups are selected
  int group_best = 2;                         ///< RouteArgs::group_best
  /// A bias of each expert changes the choice. It is read and written with the weights, and not trained.
  bool choice_bias = false;
  /// Whether the router and every matrix of an expert have a bias, which is trained.
  bool biases = false;
  bool operator==(const ExpertShape&) const = default;
};

/// The gated delta rule in place of attention (layers/delta_attention.h). Its convolution has ops::kDeltaTaps
/// taps.
struct DeltaShape {
  ops::DeltaHeads heads;  ///< without heads: no block has a delta rule
  /// Files have the columns of queries, keys, values and gates of each key head together, in in_proj_qkvz and
  /// in_proj_ba. Otherwise they are in in_proj_qkv, in_proj_z, in_proj_b and in_proj_a.
  bool grouped = false;
  double least_decay = 0;  ///< exp(A_log) of a new model is uniform between this number and 16
  bool operator==(const DeltaShape&) const = default;
};

/// Multi-head latent attention in all blocks (layers/latent_attention.h). Small latents are stored in place
/// of queries, keys and values, and linear layers expand them.
struct LatentShape {
  ops::LatentHeads heads;    ///< without heads: no latent attention
  std::int64_t kv_rank = 0;  ///< width of the latent of keys and values
  std::int64_t q_rank = 0;   ///< width of the latent of queries; 0: queries have none
  double norm_eps = 1e-6;    ///< of the norms of latents
  bool operator==(const LatentShape&) const = default;
};

/// Storage format of the weight files, from quantization_config in config.json. It changes only how weights
/// are read.
struct StoredWeights {
  enum class Format {
    plain,
    nf4,         ///< codes of bitsandbytes in the blocks' linear layers
    fp8_blocks,  ///< E4M3 with a scale for each 128 x 128 elements
    mxfp4        ///< E2M1 with a scale for each 32 elements, in the experts
  };
  Format format = Format::plain;
  bool double_quantization = false;  ///< nf4
  /// nf4: tensors of the blocks' linear layers that are not quantised. Taken from the weight files, not from
  /// config.json.
  std::set<std::string> unquantised;
};

/// A decoder-only transformer: blocks of causal attention or a delta rule, and a gated MLP. Each feature of a
/// family is a flag of this struct, so the core never tests for a family.
struct Architecture {
  std::string model_type;  ///< "llama"
  /// Whether the text model is one part of a multimodal checkpoint. Its tensors may then have another prefix.
  bool multimodal = false;
  /// With multimodal: the names "model." and "lm_head." in the files do not mean that other parts are
  /// missing.
  bool unprefixed_text = false;
  std::string tensor_prefix = "model.";  ///< of the Hugging Face names of the tensors
  std::string head_name = "lm_head.weight";
  /// A reward model: the head is one row, "score.weight", and gives a score instead of logits.
  bool scores = false;
  ModuleNames names;
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t layers = 0;
  ops::Heads heads;
  std::int64_t max_positions = 0;  ///< from the config; not a limit of the core
  double norm_eps = 1e-6;
  ops::Activation activation = ops::Activation::silu;
  double activation_limit = 7.0;  ///< GatedActivationArgs::limit
  bool tied = false;              ///< the head is the embedding table
  bool qkv_bias = false;
  bool output_bias = false;  ///< bias of the projection after attention
  bool mlp_bias = false;
  bool one_plus_weight = false;  ///< norms multiply by 1 + w
  bool qk_norm = false;          ///< a norm of each query and key head, before the rotary embedding
  /// With qk_norm: one norm of all query heads of a token, and one of all key heads.
  bool qk_norm_of_all_heads = false;
  bool sublayer_norms = false;  ///< norms of the outputs of attention and MLP (post-norm)
  bool layer_norm = false;      ///< norms of the stream subtract the mean (ops/layer_norm.h)
  bool norm_bias = false;       ///< with layer_norm: norms add a bias
  /// Attention and MLP read one norm of the block's input, and both add to the stream (GPT-J).
  bool parallel = false;
  bool gated = true;  ///< false: the MLP is up, activation, down
  double embedding_scale = 1.0;
  /// Row of the embedding table that gets no gradient from look-ups (PyTorch's padding_idx); -1: none.
  std::int32_t padding_id = -1;
  double attention_scale = 1.0;
  bool attention_sinks = false;     ///< a trained score of each head without a key (ops/attention_sinks.h)
  double attention_soft_cap = 0.0;  ///< 0: none
  double logit_soft_cap = 0.0;      ///< 0: none
  std::vector<Rope> ropes;
  std::int64_t rotary_dim = 0;      ///< the first dimensions of each head that rotate; 0: all
  bool interleaved_rotary = false;  ///< neighbouring dimensions rotate together (ops/rope.h)
  std::vector<BlockShape> blocks;   ///< [layers]
  ExpertShape experts;
  DeltaShape delta;
  /// With heads: Architecture::heads has equally many KV heads, as wide as keys with both of their parts, and
  /// rotary_dim is the width of the part that rotates.
  LatentShape latent;
  bool output_gate = false;  ///< a gate for each output of attention (ops/output_gate.h)
  bool value_norm = false;   ///< a norm of each value head, without weight
  /// The stream after a block is multiplied by a number of the block, which is stored and not trained.
  bool output_scales = false;
  /// Files may have modules "mtp", which predict further tokens. They are not read.
  bool further_modules = false;
  /// Stored blocks after the last one, which predict further tokens. They are not read.
  std::int64_t further_blocks = 0;
  bool input_norms = true;  ///< norms of the inputs of attention and MLP (pre-norm)
  /// With qk_norm: the norms of heads follow the rotary embedding. Their names are query_layernorm and
  /// key_layernorm.
  bool qk_norm_last = false;
  bool fused_qkv = false;      ///< files have one tensor for queries, keys and values, which is one module
  bool fused_gate_up = false;  ///< files have one tensor for gate and up, which is one module
  /// Whether embedding_scale is rounded to the dtype of the table before it multiplies.
  bool rounds_embedding_scale = true;
  /// Outputs of attention and MLP are multiplied by it before the stream adds them. The core divides the
  /// stream by it instead, which no norm of the stream sees: it scales the embedding and stream_eps().
  double residual_multiplier = 1.0;
  double logits_divisor = 1.0;  ///< logits are divided by it, before their soft cap
  double initializer_range = 0.02;
  double embedding_initializer_range = 0.02;
  /// The trained parameters and the adapters. Not from config.json.
  Tuning tuning;
  StoredWeights stored;
  /// The part of the model that this rank computes. All other members describe the whole model.
  Share share;

  std::int64_t q_width() const { return heads.q_heads * heads.head_dim; }
  /// Returns the heads of attention in block `layer` of the whole model.
  ops::Heads heads_of(std::int64_t layer) const {
    const BlockShape shape = block(layer);
    return {.q_heads = heads.q_heads,
            .kv_heads = shape.kv_heads == 0 ? heads.kv_heads : shape.kv_heads,
            .head_dim = shape.head_dim == 0 ? heads.head_dim : shape.head_dim};
  }
  /// Width of the output of attention, without padding.
  std::int64_t attended_width() const { return has_latents() ? latent.heads.values() : q_width(); }
  /// Returns the shape of block `layer` with every size filled in.
  BlockShape block(std::int64_t layer) const {
    const auto i = static_cast<std::size_t>(layer);
    BlockShape shape = i < blocks.size() ? blocks[i] : BlockShape{};
    if (shape.intermediate == 0) shape.intermediate = intermediate;
    return shape;
  }
  /// Returns the number of dimensions of a head that rotate.
  std::int64_t rotated() const { return rotary_dim == 0 ? heads.head_dim : rotary_dim; }
  /// The epsilon of norms of the stream.
  double stream_eps() const { return norm_eps / (residual_multiplier * residual_multiplier); }
  bool has_delta_rule() const { return delta.heads.value_heads > 0; }
  bool has_latents() const { return latent.heads.heads > 0; }
  bool operator==(const Architecture& other) const;
};

/// Reads a Hugging Face config.json with the keys of transformers 4 (rope_theta, rope_scaling) or 5
/// (rope_parameters, layer_types). `where` names the file. Sizes are bounded, so products of sizes cannot
/// overflow. Throws Error with the key for a missing or impossible size, for an unsupported feature, and for
/// an unknown key that may change the mathematics. Throws Error with the known families for an unknown
/// family. For a multimodal model, reads the text model (text_config). Its missing keys have the defaults of
/// its class.
Architecture read_architecture(const Json& config, const std::string& where);
/// Reads the folder's config.json. Throws Error (usage) if the folder has none.
Architecture read_architecture(const std::string& folder);

/// Sets the tensor names of the text model of a multimodal checkpoint. `exists` returns whether the weight
/// files have a tensor. Does nothing for other architectures.
void name_tensors(Architecture& architecture, const std::function<bool(const std::string&)>& exists);

/// Returns the architecture with the names that modules of the text model have in transformers 5 and in PEFT,
/// whatever the weight files call them: "model.language_model." and "lm_head" in a multimodal model.
Architecture named_as_modules(Architecture architecture);

/// Returns the beginnings of names of stored tensors that belong to the text model of a multimodal
/// checkpoint. Empty for other architectures: all tensors belong to the model.
std::vector<std::string> text_tensors(const Architecture& architecture);

/// Returns the beginnings of names of stored tensors that the model does not read.
std::vector<std::string> unread_tensors(const Architecture& architecture);

/// Returns the reward model with the blocks of `architecture`. Throws Error (usage) if transformers has no
/// class for it. `where` names the model.
Architecture as_reward_model(Architecture architecture, const std::string& where);
/// Returns the class of a reward model in transformers, or "" if there is none:
/// "LlamaForSequenceClassification".
std::string reward_class(const Architecture& architecture);

/// Returns the heads of a rank's share. It has at least one KV head.
ops::Heads heads_of_share(const Architecture& architecture);
/// Likewise, of block `layer`.
ops::Heads heads_of_share(const Architecture& architecture, std::int64_t layer);
/// Returns the rows of the embedding and of the head in a rank's share. These are also its logits.
Piece vocabulary_of_share(const Architecture& architecture);
/// Throws Error (usage) if the model cannot be split among `tensor_size` ranks and into `stages` stages. The
/// message names the size that prevents it.
void require_splits(const Architecture& architecture, int tensor_size, int stages);

/// Returns the families that read_architecture() supports: "llama", "mistral", …
std::vector<std::string> known_families();

/// Returns the inverse frequencies [head_dim / 2] in fp32, computed like in transformers (YaRN: Peng et al.
/// 2023, arXiv:2309.00071; llama3: transformers, modeling_rope_utils.py). `long_documents`: longrope's
/// frequencies for them. dynamic has the standard ones, as in documents of up to original_max_positions
/// tokens.
std::vector<float> inverse_frequencies(const Rope& rope, std::int64_t head_dim, bool long_documents = false);

/// Returns, by name, all members of `architecture` that affect the results of a model with given weights.
/// Members that only initialise or name weights are left out. So is max_positions, which is no limit of the
/// core.
Json facts_of(const Architecture& architecture);

}  // namespace octet::model
