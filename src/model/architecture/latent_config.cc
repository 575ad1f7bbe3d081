// Multi-head latent attention in a config.json, with the keys of DeepseekV3Config in transformers.
#include <string>

#include "families.h"

namespace octet::model {
namespace {

/// Throws Error unless a size that other keys determine is absent or has its value.
void require_size(Reader& config, const std::string& key, std::int64_t expected, const std::string& meaning) {
  const Json* found = config.find(key);
  if (found == nullptr || *found == expected) return;
  refuse("'" + key + "' does not fit", std::to_string(expected) + ", " + meaning, short_json(*found),
         config.where());
}

}  // namespace

void read_latents(Reader& config, Architecture& a) {
  const std::int64_t heads = a.heads.q_heads;
  a.latent.heads = {.heads = heads,
                    .nope_dim = config.size("qk_nope_head_dim", 128, kMaxHeadDim),
                    .rope_dim = config.size("qk_rope_head_dim", 64, kMaxHeadDim),
                    .value_dim = config.size("v_head_dim", 128, kMaxHeadDim)};
  a.latent.kv_rank = config.size("kv_lora_rank", 512, kMaxWidth);
  // Null means that queries have no latent.
  if (config.find("q_lora_rank") != nullptr) a.latent.q_rank = config.size("q_lora_rank", kMaxWidth);
  const ops::LatentHeads& latent = a.latent.heads;
  if (latent.rope_dim % 2 != 0) {
    refuse("a rotary embedding needs an even number of dimensions", "an even qk_rope_head_dim",
           std::to_string(latent.rope_dim), config.where());
  }
  if (latent.key_dim() % 2 != 0) {
    refuse("a rotary embedding needs heads of even size", "an even qk_nope_head_dim",
           std::to_string(latent.nope_dim), config.where());
  }
  if (latent.value_dim > latent.key_dim()) {
    refuse("values that are wider than keys are not supported",
           "a v_head_dim of at most qk_nope_head_dim + qk_rope_head_dim, " + std::to_string(latent.key_dim()),
           std::to_string(latent.value_dim), config.where());
  }
  if (latent.key_dim() > kMaxHeadDim) {
    refuse("the keys are too wide", "at most " + std::to_string(kMaxHeadDim),
           std::to_string(latent.key_dim()), config.where());
  }
  require_size(config, "num_key_value_heads", heads, "num_attention_heads");
  require_size(config, "head_dim", latent.rope_dim, "qk_rope_head_dim");
  require_size(config, "qk_head_dim", latent.key_dim(), "qk_nope_head_dim + qk_rope_head_dim");
  a.heads = latent.padded();
  a.rotary_dim = latent.rope_dim;
  if (a.latent.q_rank == 0 && config.boolean("attention_bias", false)) {
    refuse("biases of attention are not supported without a latent of queries", "attention_bias: false",
           "attention_bias: true and q_lora_rank: null", config.where());
  }
}

}  // namespace octet::model
