// Heads of Gemma 4 that differ between layers with full attention and layers with a window.
#include <string>

#include "families.h"
#include "octet/base/json.h"

namespace octet::model {
namespace {

/// Throws Error if the model needs a part of Gemma 4 that Octet does not have.
void require_built_parts(Reader& config) {
  const auto refuse_part = [&](const std::string& part, const std::string& expected,
                               const std::string& found) {
    refuse("Gemma 4 with " + part + " is not supported", expected, found, config.where(),
           "use a dense Gemma 4 without per-layer inputs, as the 31B is");
  };
  const auto count = [&](const std::string& key, std::int64_t fallback) {
    config.find(key);
    return json_int(config.object(), key, fallback, 0, kMaxWidth, config.where());
  };
  // The class of transformers has per-layer inputs unless the file sets their size to 0.
  const std::int64_t inputs = count("hidden_size_per_layer_input", 256);
  if (inputs != 0) refuse_part("per-layer inputs", "hidden_size_per_layer_input: 0", std::to_string(inputs));
  const std::int64_t shared = count("num_kv_shared_layers", 0);
  if (shared != 0)
    refuse_part("layers that share keys and values", "num_kv_shared_layers: 0", std::to_string(shared));
  if (config.boolean("enable_moe_block", false))
    refuse_part("experts next to its MLPs", "enable_moe_block: false", "true");
  const std::string both = config.text("use_bidirectional_attention", "vision");
  if (both != "vision")
    refuse_part("attention in both directions", "use_bidirectional_attention: null or vision", both);
  // They apply only to the refused parts.
  for (const char* key : {"moe_intermediate_size", "num_experts", "top_k_experts", "use_double_wide_mlp",
                          "vocab_size_per_layer_input"})
    config.find(key);
}

/// The heads of layers with full attention.
struct FullHeads {
  std::int64_t head_dim = 0, kv_heads = 0;
};

/// Reads them from per_layer_config, which transformers 5.24 writes in place of the published keys: an object
/// of layers' numbers, with the values in which each layer differs.
FullHeads read_overrides(const Json& layers, const Architecture& a, const FullHeads& usual,
                         const std::string& where) {
  if (!layers.is_object())
    refuse("'per_layer_config' cannot be used", "an object of layers", short_json(layers), where);
  FullHeads heads = usual;
  bool first = true;
  for (std::size_t i = 0; i < a.blocks.size(); ++i) {
    const auto found = layers.find(std::to_string(i));
    if (a.blocks[i].window > 0) {
      if (found != layers.end() && !found->empty()) {
        refuse("'per_layer_config' changes a layer with a window", "layers with full attention",
               std::to_string(i), where);
      }
      continue;
    }
    FullHeads one{.head_dim = a.heads.head_dim, .kv_heads = a.heads.kv_heads};
    if (found != layers.end()) {
      if (!found->is_object())
        refuse("'per_layer_config' cannot be used", "an object for each layer", short_json(*found), where);
      Reader reader(*found, where + ": per_layer_config: " + std::to_string(i));
      one.head_dim = reader.size("head_dim", one.head_dim, kMaxHeadDim);
      one.kv_heads = reader.size("num_key_value_heads", one.kv_heads, kMaxHeads);
      for (const auto& [key, value] : found->items()) {
        if (!reader.seen().contains(key))
          refuse("'per_layer_config' has a key that is not supported", "head_dim and num_key_value_heads",
                 key, where);
      }
    }
    if (!first && (one.head_dim != heads.head_dim || one.kv_heads != heads.kv_heads)) {
      refuse("layers with full attention differ from each other", "equal heads in 'per_layer_config'",
             short_json(layers), where);
    }
    heads = one;
    first = false;
  }
  return heads;
}

}  // namespace

void read_heads_by_layer(Reader& config, Architecture& a) {
  require_built_parts(config);
  const std::string& where = config.where();
  const bool keys_as_values = config.boolean("attention_k_eq_v", false);
  FullHeads full{.head_dim = config.size("global_head_dim", 512, kMaxHeadDim), .kv_heads = a.heads.kv_heads};
  // Without attention_k_eq_v, transformers does not read the number.
  const std::int64_t kv_heads = config.size("num_global_key_value_heads", a.heads.kv_heads, kMaxHeads);
  if (keys_as_values) full.kv_heads = kv_heads;
  // The last layer has full attention in transformers, whatever the file says.
  a.blocks.back().window = 0;
  a.blocks.back().rope = 0;
  if (const Json* layers = config.find("per_layer_config")) full = read_overrides(*layers, a, full, where);
  if (full.head_dim % 2 != 0) {
    refuse("a rotary embedding needs heads of even size", "an even global_head_dim",
           std::to_string(full.head_dim), where);
  }
  if (a.heads.q_heads % full.kv_heads != 0) {
    refuse("the heads cannot be grouped", "num_attention_heads divisible by num_global_key_value_heads",
           std::to_string(a.heads.q_heads) + " and " + std::to_string(full.kv_heads), where);
  }
  for (BlockShape& block : a.blocks) {
    const bool windowed = block.window > 0;
    block.head_dim = windowed ? a.heads.head_dim : full.head_dim;
    block.kv_heads = windowed ? a.heads.kv_heads : full.kv_heads;
    block.keys_as_values = keys_as_values && !windowed;
  }
  a.value_norm = true;
  a.output_scales = true;
}

}  // namespace octet::model
