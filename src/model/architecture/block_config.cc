#include <algorithm>
#include <string>
#include <vector>

#include "families.h"
#include "octet/ops/delta_inputs.h"

namespace octet::model {
namespace {

/// Returns whether block `i` has a sliding window if the file has no `layer_types`.
bool slides(const Family& family, std::int64_t i, bool use, std::int64_t first, std::int64_t period,
            bool rotates) {
  switch (family.window) {
    case WindowRule::none:
      return false;
    case WindowRule::all:
      return true;
    case WindowRule::from_layer:
      return use && i >= first;
    case WindowRule::all_if_used:
      return use;
    case WindowRule::even_below_layer:
      return use && i % 2 == 0 && i < first;
    case WindowRule::periodic:
      return (i + 1) % period != 0;
    case WindowRule::without_rope:
      return use && !rotates;
  }
  return false;
}

/// Returns for each block whether it rotates queries and keys, with the keys of SmolLM3Config.
std::vector<bool> read_rotating_blocks(Reader& config, std::int64_t layers) {
  const std::int64_t interval = config.size("no_rope_layer_interval", 4, kMaxLayers);
  std::vector<bool> rotates(static_cast<std::size_t>(layers));
  for (std::int64_t i = 0; i < layers; ++i) rotates[static_cast<std::size_t>(i)] = (i + 1) % interval != 0;
  const Json* list = config.find("no_rope_layers");
  if (list == nullptr) return rotates;
  const auto is_switch = [](const Json& one) { return one == 0 || one == 1; };
  if (!list->is_array() || list->size() < rotates.size() || !std::ranges::all_of(*list, is_switch)) {
    refuse("'no_rope_layers' cannot be used",
           "a list of at least " + std::to_string(layers) + " numbers: 1 for a rotary embedding, 0 for none",
           short_json(*list), config.where());
  }
  for (std::size_t i = 0; i < rotates.size(); ++i) rotates[i] = (*list)[i] == 1;
  return rotates;
}

}  // namespace

std::vector<BlockShape> read_blocks(Reader& config, const Family& family, std::int64_t layers) {
  std::vector<BlockShape> blocks(static_cast<std::size_t>(layers));
  // An explicit null means no window; only an absent key has the family's default.
  const Json* found = config.find("sliding_window");
  // The class of qwen2_moe writes 0 for no window.
  if (family.window == WindowRule::even_below_layer && found != nullptr && *found == 0) found = nullptr;
  std::int64_t window = found != nullptr ? config.size("sliding_window", kMaxPositions) : 0;
  const bool use = config.boolean("use_sliding_window", family.window == WindowRule::all);
  const std::int64_t first =
      json_int(config.object(), "max_window_layers", 28, 0, kMaxPositions, config.where());
  const Json* types = config.find("layer_types");
  // layer_types replaces the pattern, which may then be a text.
  if (types != nullptr && !family.period_key.empty()) config.find(std::string(family.period_key));
  const std::int64_t period = family.period_key.empty() || types != nullptr
                                  ? family.period
                                  : config.size(std::string(family.period_key), family.period, kMaxLayers);
  if (family.window == WindowRule::none) {
    if (found != nullptr || use) {
      refuse("a sliding window is not supported by this family", "no 'sliding_window'",
             found != nullptr ? short_json(*found) : "use_sliding_window: true", config.where());
    }
    window = 0;
  }
  if (family.needs_window && window == 0) {
    refuse("the window of this family's blocks is missing", "'sliding_window', a number", "null",
           config.where());
  }
  if (types != nullptr && (!types->is_array() || types->size() != blocks.size())) {
    refuse("'layer_types' does not fit", "a list of " + std::to_string(layers) + " names", short_json(*types),
           config.where());
  }
  // layer_types replaces the interval here, too.
  const std::int64_t interval = family.delta_rule ? config.size("full_attention_interval", 4, kMaxLayers) : 1;
  const std::string kinds =
      std::string("full_attention or ") + (family.delta_rule ? "linear_attention" : "sliding_attention");
  const std::vector<bool> rotates =
      family.rope_by_layer ? read_rotating_blocks(config, layers) : std::vector<bool>(blocks.size(), true);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!rotates[i]) blocks[i].rope = kNoRope;
    bool sliding = slides(family, static_cast<std::int64_t>(i), use, first, period, rotates[i]);
    blocks[i].delta_rule = (static_cast<std::int64_t>(i) + 1) % interval != 0;
    if (types != nullptr) {
      const Json& type = (*types)[i];
      blocks[i].delta_rule = family.delta_rule && type == "linear_attention";
      sliding = type == "sliding_attention";
      const std::string where = config.where() + ": layer_types[" + std::to_string(i) + "]";
      if (!blocks[i].delta_rule && type != "full_attention" && (!sliding || family.delta_rule))
        refuse("a kind of layer is not supported", kinds, short_json(type), where);
      if (sliding && window == 0) {
        refuse("a layer has sliding attention, but no window size", "'sliding_window'", short_json(type),
               where);
      }
    }
    if (!sliding && family.rope_in_windows && window > 0) blocks[i].rope = kNoRope;
    if (!sliding) continue;
    blocks[i].window = window;
    if (family.local_theta > 0) blocks[i].rope = 1;
  }
  if (std::ranges::all_of(blocks, &BlockShape::delta_rule)) {
    refuse("a model with only linear attention is not supported", "one layer or more with full_attention",
           types != nullptr ? short_json(*types)
                            : "full_attention_interval: " + std::to_string(interval) + " and " +
                                  std::to_string(layers) + " layers",
           config.where());
  }
  return blocks;
}

void read_delta_rule(Reader& config, const Family& family, Architecture& a) {
  if (!family.delta_rule) return;
  const std::int64_t taps = config.size("linear_conv_kernel_dim", 4, kMaxWidth);
  if (taps != ops::kDeltaTaps) {
    refuse("the convolution of linear attention is not supported",
           "linear_conv_kernel_dim: " + std::to_string(ops::kDeltaTaps), std::to_string(taps),
           config.where());
  }
  a.delta = {.heads = {.key_heads = config.size("linear_num_key_heads", 16, kMaxHeads),
                       .value_heads = config.size("linear_num_value_heads", 32, kMaxHeads),
                       .key_dim = config.size("linear_key_head_dim", 128, kMaxHeadDim),
                       .value_dim = config.size("linear_value_head_dim", 128, kMaxHeadDim)},
             .grouped = family.grouped_delta,
             .least_decay = family.least_decay};
  const ops::DeltaHeads& heads = a.delta.heads;
  if (heads.value_heads % heads.key_heads != 0) {
    refuse("the heads of linear attention cannot be grouped",
           "linear_num_value_heads divisible by linear_num_key_heads",
           std::to_string(heads.value_heads) + " and " + std::to_string(heads.key_heads), config.where());
  }
  const auto fits = [](std::int64_t dim) { return dim % 8 == 0 && dim <= ops::kMostDeltaDim; };
  if (!fits(heads.key_dim) || !fits(heads.value_dim)) {
    refuse("the heads of linear attention have a size that is not supported",
           "linear_key_head_dim and linear_value_head_dim: multiples of 8, at most " +
               std::to_string(ops::kMostDeltaDim),
           std::to_string(heads.key_dim) + " and " + std::to_string(heads.value_dim), config.where());
  }
  if (a.activation != ops::Activation::silu) {
    refuse("the activation of linear attention is not supported", "hidden_act: silu",
           config.text(std::string(family.activation_key), "silu"), config.where());
  }
  if (std::ranges::none_of(a.blocks, &BlockShape::delta_rule)) a.delta = {};
}

}  // namespace octet::model
