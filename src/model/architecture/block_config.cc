#include <algorithm>
#include <string>
#include <vector>

#include "families.h"

namespace octet::model {
namespace {

/// Whether block `i` slides when no `layer_types` say so.
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
  const std::vector<bool> rotates =
      family.rope_by_layer ? read_rotating_blocks(config, layers) : std::vector<bool>(blocks.size(), true);
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (!rotates[i]) blocks[i].rope = kNoRope;
    bool sliding = slides(family, static_cast<std::int64_t>(i), use, first, period, rotates[i]);
    if (types != nullptr) {
      const Json& type = (*types)[i];
      sliding = type == "sliding_attention";
      const std::string where = config.where() + ": layer_types[" + std::to_string(i) + "]";
      if (!sliding && type != "full_attention") {
        refuse("a kind of layer is not supported", "full_attention or sliding_attention", short_json(type),
               where);
      }
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
  return blocks;
}

}  // namespace octet::model
