#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

namespace octet::model {

/// A low-rank adapter beside the weight W [out, in] of a linear module: y = W x + factor · B (A x), with
/// A [rank, in] and B [out, rank] (LoRA: Hu et al. 2021, arXiv:2106.09685).
struct AdapterShape {
  std::int64_t rank = 0;
  double factor = 1.0;
  double dropout = 0.0;  ///< of the elements of x that A reads, in training (ops::dropout)
  /// y = m / n (W x + factor · B (A x)) instead, with a trained magnitude m [out], which begins as the norms
  /// of W's rows, and n the norms of the rows of W + factor · B A, constant in backward (DoRA: Liu et al.
  /// 2024, arXiv:2402.09353, as PEFT computes it; a bias is added outside).
  bool dora = false;
  auto operator<=>(const AdapterShape&) const = default;
};

/// What of a model is trained.
struct Tuning {
  /// False: there are no adapters. True: they and what `whole` names are trained; the rest is frozen.
  bool adapters = false;
  std::map<std::string, AdapterShape>
      modules;  ///< by the module's Hugging Face name, "model.layers.0.mlp.up_proj"
  std::set<std::string>
      whole;  ///< modules that are trained whole beside adapters: "model.embed_tokens", "lm_head"
  /// The learning rate of B and of magnitudes is so many times the others' (LoRA+: Hayou et al. 2024,
  /// arXiv:2402.12354).
  double output_rate = 1.0;
  /// Without adapters: the modules whose tensors alone are trained, "model.layers.3.mlp", "lm_head"; all
  /// others are frozen. Nothing: every parameter is trained.
  std::optional<std::set<std::string>> only;
  auto operator<=>(const Tuning&) const = default;

  /// Whether any adapter has dropout.
  bool drops() const;
  /// Whether anything may be frozen.
  bool freezes() const { return adapters || only.has_value(); }
  /// Whether the tensor that Hugging Face calls `tensor` is trained itself, adapters left aside.
  bool trains(const std::string& tensor) const;
};

/// What PEFT puts before the names of tensors.
inline constexpr const char* kAdapterPrefix = "base_model.model.";

}  // namespace octet::model
