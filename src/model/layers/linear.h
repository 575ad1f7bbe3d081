#pragma once

#include <span>
#include <string>
#include <vector>

#include "layers/linear_operands.h"
#include "layers/low_rank.h"
#include "layers/weight.h"
#include "octet/model/work.h"

namespace octet::model {

/// What a linear layer is built from.
struct LinearShape {
  /// "qkv": in names of tensors, plans and profiles, which keep the pointer.
  const char* name = "";
  const char* title = "";     ///< "attention q, k, v": for people
  std::int64_t inputs = 0;    ///< of the whole model
  std::vector<Part> modules;  ///< "self_attn.q_proj" with its outputs, …
  bool bias = false;
  double init_std = 0.02;
  bool kept_values = false;     ///< whoever makes its input reads the values again in backward
  SplitRule inputs_split = {};  ///< how its inputs are cut; its outputs are then parts of sums
  bool adds_bias = true;        ///< false: another rank adds it to the sum
  /// In a mixture, `modules` of the first expert come first, then of the second, …
  std::int64_t experts = 1;
  std::int64_t taken = 1;  ///< experts that a token takes
};

/// Rows in the order of their experts. Expert e has rows [begins[e], begins[e + 1]).
struct ExpertRows {
  const std::int32_t* begins = nullptr;  ///< [experts + 1], on the device
  std::span<const std::int32_t> on_host;
};

/// y = x · Wᵀ + b: a weight, perhaps a bias and adapters, and the operands that its products read. Whoever
/// makes the input or the output's gradient asks it what to write.
class Linear {
 public:
  Linear(GroupBuilder& group, const LinearShape& shape);

  const char* name() const { return name_; }
  /// Whether any of its tensors is.
  bool trained() const;
  /// Whether its input's gradient is wanted.
  void set_passes_on(bool passes_on) { passes_on_ = passes_on; }
  /// Whether backward has anything to do.
  bool runs_back() const { return trained() || passes_on_; }
  const Weight& weight() const { return weight_; }
  Weight& weight() { return weight_; }
  const LowRank& adapters() const { return adapters_; }
  LowRank& adapters() { return adapters_; }
  /// In a mixture: one per expert, or none.
  std::vector<LowRank>& expert_adapters() { return expert_adapters_; }
  const std::vector<LowRank>& expert_adapters() const { return expert_adapters_; }
  /// What its products do with `tokens` tokens (of a mixture: rows of all experts), and what is known of the
  /// layer (work.h).
  LinearLayer facts() const;
  std::vector<Operation> operations(std::int64_t tokens, const Repeats& forward_again) const;

  LinearInput& input() { return input_; }
  const LinearInput& input() const { return input_; }
  OutputGradient& output_gradient() { return output_gradient_; }
  /// What the producer of its output's gradient writes: `values`, where they must exist in the compute dtype
  /// (for a bias or adapters, or because the recipe quantises finished matrices), and beside or instead of
  /// them FP8 copies.
  Wanted wanted_gradient(const Call& call, const ops::Matrix& values) const;
  /// The operands for backward after the producer wrote `d_output` and what was wanted.
  std::vector<ops::Operand> gradient_written(const Call& call, const ops::ConstMatrix& d_output) const;

  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;

  /// Of the input that is ready; `addend` is added where it has data.
  void forward(const Call& call, const ops::Matrix& out, const ops::ConstMatrix& addend = {}) const;
  /// The same of very few tokens of a core that does not train, together with the ops around it: `args` has
  /// all but weight and bias. takes_lone(): whether that can be; nothing is enqueued before.
  bool takes_lone(const Call& call, const ops::LoneGemmArgs& args) const;
  void forward_lone(const Call& call, const ops::LoneGemmArgs& args) const;
  /// Of an input that was made again: what backward reads besides it, where nobody reads the output again.
  void remake(const Call& call) const;
  /// Gradients of weight, bias and adapters where they are trained, and, where it is wanted, of the input
  /// into `d_input`, which may lie where the input does. `operands` are those of gradient_written().
  void backward(const Call& call, const ops::ConstMatrix& d_output, std::span<const ops::Operand> operands,
                const ops::Matrix& d_input) const;

  // In a mixture: the GEMMs of all experts with the rows of their tokens, as one kernel or one by one. FP8
  // copies are made here and are in the scratch; with current scaling the rows of an expert have a scale.

  /// The experts of grouped GEMMs; see Weight.
  const ops::Operand& stored(const Call& call) const { return weight_.stored(call); }
  void forward_experts(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                       const ops::Matrix& out) const;
  /// The gradient of x; nothing if it is not wanted. Its amax enters the histories of delayed scaling.
  void experts_input_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& d_output,
                              const ops::Matrix& d_x) const;
  /// The gradients of the weight and of adapters, if they are trained.
  void experts_weight_gradient(const Call& call, const ExpertRows& rows, const ops::Matrix& x,
                               const ops::Matrix& d_output) const;

 private:
  void add_expert_adapters(GroupBuilder& group, const LinearShape& shape);
  const LowRank* adapters_of(std::int64_t expert) const {
    if (expert_adapters_.empty() || !expert_adapters_[static_cast<std::size_t>(expert)]) return nullptr;
    return &expert_adapters_[static_cast<std::size_t>(expert)];
  }
  /// Whether a product of the weight reads the output's gradient.
  bool multiplies_gradient() const { return passes_on_ || weight_.trained(); }
  /// What this rank adds to each row; null for nothing.
  const float* added_bias(const Call& call) const { return adds_bias_ ? bias_.in(call.parameters) : nullptr; }
  std::optional<ops::LoneGemmArgs> lone(const Call& call, const ops::LoneGemmArgs& args) const;
  /// What DoRA scales: W x and what adapters add to it.
  void make_unscaled(const Call& call) const;

  const char* name_;
  const char* title_;
  std::int64_t experts_, taken_;
  bool kept_values_;
  bool adds_bias_;
  bool passes_on_ = true;
  Weight weight_;
  VectorHandle bias_;
  LowRank adapters_;
  std::vector<LowRank> expert_adapters_;
  LinearInput input_;
  OutputGradient output_gradient_;
};

}  // namespace octet::model
