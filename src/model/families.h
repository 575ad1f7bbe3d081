#pragma once

#include <string_view>
#include <vector>

#include "octet/model/architecture.h"

namespace octet::model {

enum class BiasRule { never, always, by_key };
/// Which blocks have a sliding window: none, all (`sliding_window` is a number), or those from
/// max_window_layers on when use_sliding_window is true.
enum class WindowRule { none, all, from_layer };

/// A family of models: how its config.json is read. What every family shares is not here.
struct Family {
  std::string_view model_type;
  std::string_view class_name;  ///< in `architectures`
  BiasRule qkv_bias = BiasRule::never;
  BiasRule output_bias = BiasRule::never;
  BiasRule mlp_bias = BiasRule::never;
  WindowRule window = WindowRule::none;
  std::int64_t default_window = 0;  ///< when the key is absent
  std::string_view activation_key = "hidden_act";
  double default_theta = 10000.0;
  bool default_tied = false;
  std::string_view unsupported;  ///< why the family is known and refused; empty: supported
};

const std::vector<Family>& families();

/// Keys of config.json that change nothing Octet computes (dates, token ids, generation defaults, …).
bool is_harmless_key(std::string_view key);

/// Keys that change the mathematics, with the value at which they do not.
struct NeutralKey {
  std::string_view key;
  double neutral;
  std::string_view meaning;
};
const std::vector<NeutralKey>& neutral_keys();

}  // namespace octet::model
