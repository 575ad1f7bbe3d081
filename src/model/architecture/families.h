#pragma once

#include <string_view>
#include <vector>

#include "octet/model/architecture.h"

namespace octet::model {

enum class BiasRule { never, always, by_key };
/// Which blocks have a sliding window: none, all (`sliding_window` is a number), those from max_window_layers
/// on when use_sliding_window is true, all when it is, all but every `period`-th, or when it is true every
/// second one of those below max_window_layers.
enum class WindowRule { none, all, from_layer, all_if_used, periodic, even_below_layer };

/// A family of models: how its config.json is read. What every family shares is not here.
struct Family {
  std::string_view model_type;
  std::string_view class_name;  ///< in `architectures`
  std::string_view text_class;  ///< another one: the text model alone; empty: none
  BiasRule qkv_bias = BiasRule::never;
  BiasRule output_bias = BiasRule::never;
  BiasRule mlp_bias = BiasRule::never;
  WindowRule window = WindowRule::none;
  std::int64_t period = 0;
  std::string_view period_key;  ///< where a config may give another period; empty: nowhere
  std::string_view activation_key = "hidden_act";
  double default_theta = 10000.0;
  double local_theta = 0.0;  ///< base of the rotary embedding of windowed blocks; 0: that of all
  bool one_plus_weight = false;
  bool qk_norm = false;
  bool sublayer_norms = false;
  bool scaled_embedding = false;  ///< by the square root of the hidden size
  bool query_scalar = false;      ///< query_pre_attn_scalar stands in for head_dim
  bool experts = false;           ///< keys of a mixture of experts are read
  /// Every block has experts of `intermediate_size`, with weights that are normalised, under Mixtral's names.
  bool mixtral_experts = false;
  bool shared_expert = false;  ///< shared_expert_intermediate_size is read
  bool soft_caps = false;      ///< final_logit_softcapping is read
  bool attention_cap = false;  ///< attn_logit_softcapping is read
  std::string_view defaults;   ///< what the class has under keys that a config lacks: a JSON object
  std::vector<std::string_view> ignored;  ///< keys that transformers does not read in this family
  std::string_view text_model;  ///< the family of `text_config`, whose `defaults` are then here; empty: none
};

const std::vector<Family>& families();

/// Keys of config.json that change nothing Octet computes (dates, token ids, generation defaults, …), or that
/// transformers does not read.
bool is_harmless_key(std::string_view key);

/// Keys that change the mathematics, with the value at which they do not.
struct NeutralKey {
  std::string_view key;
  double neutral;
  std::string_view meaning;
};
const std::vector<NeutralKey>& neutral_keys();

}  // namespace octet::model
