#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace octet::model {

/// A low-rank adapter of a linear module with weight W [out, in]: y = W x + factor · B (A x), with
/// A [rank, in] and B [out, rank] (LoRA: Hu et al. 2021, arXiv:2106.09685).
struct AdapterShape {
  std::int64_t rank = 0;
  double factor = 1.0;
  double dropout = 0.0;  ///< probability of dropout of the elements of x before A, in training (ops::dropout)
  /// DoRA (Liu et al. 2024, arXiv:2402.09353; computed like in PEFT): y = m / n · (W x + factor · B (A x)).
  /// The magnitude m [out] is trained. Its initial values are the norms of the rows of W. n are the norms of
  /// the rows of W + factor · B A, constant in backward. A bias is added after the scaling.
  bool dora = false;
  auto operator<=>(const AdapterShape&) const = default;
};

/// The place of an expert's adapter in the tensors of PEFT for a parameter of all experts
/// (target_parameters).
struct StackedAdapter {
  std::string tensors;  ///< their names without ".lora_A.weight": "model.layers.0.mlp.experts.base_layer"
  std::int64_t expert = 0, experts = 0;
  bool transposed = false;  ///< the parameter is [experts, inputs, outputs] in transformers
  /// Outputs of gate and of up alternate in the parameter. In the module, all of gate are first.
  bool alternates = false;
  auto operator<=>(const StackedAdapter&) const = default;
};

/// Which parameters of a model are trained.
struct Tuning {
  /// False: no adapters. True: adapters and the modules in `whole` are trained, and all else is frozen.
  bool adapters = false;
  std::map<std::string, AdapterShape>
      modules;  ///< by the module's Hugging Face name, "model.layers.0.mlp.up_proj"
  /// The modules of experts with adapters that files of PEFT hold as one tensor for all experts. A module
  /// "mlp.experts.0.gate_up_proj" is gate and up of an expert, with one adapter.
  std::map<std::string, StackedAdapter> stacked = {};
  std::set<std::string>
      whole;  ///< modules that are trained in full, with adapters: "model.embed_tokens", "lm_head"
  /// Multiplies the learning rate of B and of magnitudes (LoRA+: Hayou et al. 2024, arXiv:2402.12354).
  double output_rate = 1.0;
  /// Without adapters: only these modules are trained ("model.layers.3.mlp", "lm_head"), and all others are
  /// frozen. nullopt: every parameter is trained.
  std::optional<std::set<std::string>> only;
  auto operator<=>(const Tuning&) const = default;

  /// Whether any adapter has dropout.
  bool drops() const;
  /// Whether anything may be frozen.
  bool freezes() const { return adapters || only.has_value(); }
  /// Whether the tensor with the Hugging Face name `tensor` is trained. Its adapters do not count.
  bool trains(const std::string& tensor) const;
};

/// PEFT's prefix of tensor names.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

}  // namespace octet::model
