// The model room: what a model is (a table read from config.json), how its parameters lie in memory
// (layout.h), where the core gets them (parameter_source.h), the work that its layers do (work.h), and the
// transformer core itself (transformer.h), which is made of layers that own their tensors (src/model/layers).
// The core does not know how parameters are sharded, which device it runs on, or which recipe makes FP8
// operands. A family of models is a row of a table (src/model/architecture/families.cc) plus features of this
// struct.
#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "octet/base/json_fwd.h"
#include "octet/model/share.h"
#include "octet/model/tuning.h"
#include "octet/ops/gated_activation.h"
#include "octet/ops/types.h"

namespace octet::model {

enum class RopeKind { standard, linear, llama3, yarn };

/// Frequencies of a rotary embedding (Su et al. 2021) and how they are stretched for longer contexts.
struct Rope {
  RopeKind kind = RopeKind::standard;
  double theta = 10000.0;
  double factor = 1.0;                      ///< linear, llama3, yarn
  double low_freq_factor = 1.0;             ///< llama3
  double high_freq_factor = 4.0;            ///< llama3
  std::int64_t original_max_positions = 0;  ///< llama3, yarn
  double beta_fast = 32.0;                  ///< yarn: rotations above which a frequency is kept
  double beta_slow = 1.0;                   ///< yarn: rotations below which it is divided by the factor
  bool truncate = true;                     ///< yarn: bounds of the ramp are whole dimensions
  double attention_factor = 1.0;            ///< yarn: multiplies cosines and sines
  bool operator==(const Rope&) const = default;
};

/// What differs from block to block.
struct BlockShape {
  std::int64_t window = 0;        ///< a token sees itself and the window - 1 before it; 0: all before it
  int rope = 0;                   ///< index into Architecture::ropes
  std::int64_t intermediate = 0;  ///< width of its MLP; 0: Architecture::intermediate
  bool mixes_experts = false;     ///< its MLP is Architecture::experts instead
  bool operator==(const BlockShape&) const = default;
};

/// A mixture of experts in place of an MLP (Shazeer et al. 2017, arXiv:1701.06538): gated MLPs, of which a
/// router picks some for each token.
struct ExpertShape {
  /// Names of tensors in Hugging Face's files: "mlp.experts.0.gate_proj", or "block_sparse_moe.experts.0.w1".
  enum class Names { mlp, mixtral };
  std::int64_t count = 0;   ///< 0: there are none
  std::int64_t taken = 0;   ///< by each token
  std::int64_t width = 0;   ///< of one
  bool normalised = false;  ///< weights of those taken are divided by their sum
  /// Coefficient of the load-balancing loss that training adds (ops/routing.h); 0: none.
  double balance = 0;
  Names names = Names::mlp;
  /// Width of an expert that each token takes besides, weighted by a gate; 0: none.
  std::int64_t shared = 0;
  bool operator==(const ExpertShape&) const = default;
};

/// How the weights beside a config.json lie, as its quantization_config says. It changes how they are read,
/// not what the model is.
struct StoredWeights {
  enum class Format {
    plain,
    nf4,        ///< codes of bitsandbytes in the blocks' linear layers
    fp8_blocks  ///< E4M3 with a scale for each 128 x 128 elements
  };
  Format format = Format::plain;
  bool double_quantization = false;  ///< nf4
  /// nf4: tensors of the blocks' linear layers that are not quantised. Of the files, not of config.json.
  std::set<std::string> unquantised;
};

/// A decoder-only transformer: pre-norm blocks of causal attention and a gated MLP. What a family adds is a
/// flag here; nothing in the core asks for a family.
struct Architecture {
  std::string model_type;  ///< "llama"
  /// What the Hugging Face names of the tensors begin with: "model." but in multimodal checkpoints, whose
  /// text model is one part of several.
  bool multimodal = false;
  std::string tensor_prefix = "model.";
  std::string head_name = "lm_head.weight";
  std::int64_t vocabulary = 0;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  std::int64_t layers = 0;
  ops::Heads heads;
  std::int64_t max_positions = 0;  ///< as the config says; not a limit of the core
  double norm_eps = 1e-6;
  ops::Activation activation = ops::Activation::silu;
  bool tied = false;  ///< the head is the embedding table
  bool qkv_bias = false;
  bool output_bias = false;  ///< of the projection after attention
  bool mlp_bias = false;
  bool one_plus_weight = false;  ///< norms multiply by 1 + w
  bool qk_norm = false;          ///< a norm of each query and key head, before the rotary embedding
  bool sublayer_norms = false;   ///< norms of what attention and MLP add to the stream
  double embedding_scale = 1.0;
  /// The row of the embedding table that being looked up does not train (PyTorch's padding_idx); -1: none.
  std::int32_t padding_id = -1;
  double attention_scale = 1.0;
  double attention_soft_cap = 0.0;  ///< 0: none
  double logit_soft_cap = 0.0;      ///< 0: none
  std::vector<Rope> ropes;
  std::vector<BlockShape> blocks;  ///< [layers]
  ExpertShape experts;
  double initializer_range = 0.02;
  double embedding_initializer_range = 0.02;
  /// What of it is trained, and the adapters beside its weights. Not of config.json.
  Tuning tuning;
  StoredWeights stored;
  /// What of it this rank computes. All other members are those of the whole model.
  Share share;

  std::int64_t q_width() const { return heads.q_heads * heads.head_dim; }
  /// What block `layer` is, every size filled in.
  BlockShape block(std::int64_t layer) const {
    const auto i = static_cast<std::size_t>(layer);
    BlockShape shape = i < blocks.size() ? blocks[i] : BlockShape{};
    if (shape.intermediate == 0) shape.intermediate = intermediate;
    return shape;
  }
  bool operator==(const Architecture& other) const;
};

/// Reads a Hugging Face config.json, in the spelling of transformers 4 (rope_theta, rope_scaling) or 5
/// (rope_parameters, layer_types). `where` names the file. Every size is bounded, so that no later product of
/// them overflows. Throws Error naming the key for a missing or impossible size, a feature that is not
/// supported, or an unknown key that may change the mathematics, and naming the known families for another.
/// Of a multimodal model this is the text model (text_config), whose missing keys have its class's values.
Architecture read_architecture(const Json& config, const std::string& where);
/// Reads the folder's config.json. Throws Error (usage) if the folder has none.
Architecture read_architecture(const std::string& folder);

/// Settles under which names a multimodal checkpoint holds its text model: `exists` tells whether its weights
/// have a tensor. Leaves other architectures as they are.
void name_tensors(Architecture& architecture, const std::function<bool(const std::string&)>& exists);

/// The heads of a rank's share: of keys and values at least one.
ops::Heads heads_of_share(const Architecture& architecture);
/// The rows of embedding and head, and so the logits, of a rank's share.
Piece vocabulary_of_share(const Architecture& architecture);
/// Throws Error (usage) for a model that cannot be split among `tensor_size` ranks and into `stages` stages,
/// naming the size that stands in the way.
void require_splits(const Architecture& architecture, int tensor_size, int stages);

/// The families that read_architecture knows: "llama", "mistral", …
std::vector<std::string> known_families();

/// Inverse frequencies [head_dim / 2] in fp32, as transformers computes them (YaRN: Peng et al. 2023,
/// arXiv:2309.00071; llama3: transformers, modeling_rope_utils.py).
std::vector<float> inverse_frequencies(const Rope& rope, std::int64_t head_dim);

}  // namespace octet::model
