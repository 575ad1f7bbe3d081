#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <string>

namespace octet::model {

/// A low-rank adapter beside the weight W [out, in] of a linear module: y = W x + factor · B (A x), with
/// A [rank, in] and B [out, rank] (LoRA: Hu et al. 2021, arXiv:2106.09685).
struct AdapterShape {
  std::int64_t rank = 0;
  double factor = 1.0;
  auto operator<=>(const AdapterShape&) const = default;
};

/// What of a model is trained.
struct Tuning {
  /// False: every parameter, and there are no adapters. True: adapters and what `whole` names; the rest is
  /// frozen.
  bool adapters = false;
  std::map<std::string, AdapterShape>
      modules;  ///< by the module's Hugging Face name, "model.layers.0.mlp.up_proj"
  std::set<std::string>
      whole;  ///< modules that are trained whole beside adapters: "model.embed_tokens", "lm_head"
  auto operator<=>(const Tuning&) const = default;
};

/// What PEFT puts before the names of tensors.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

}  // namespace octet::model
