#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "layers/group_builder.h"
#include "layers/linear.h"
#include "layers/pass.h"

namespace octet::model {

/// logits = x · Wᵀ + b for the few outputs that decide about a token: the router of a mixture, and the gate
/// of a shared expert. W and x are in the compute dtype, logits in fp32.
class TokenGate {
 public:
  /// `weight`: [outputs, hidden]. `bias`: [outputs], or none.
  explicit TokenGate(MatrixHandle weight, VectorHandle bias = {}) : weight_(std::move(weight)), bias_(bias) {}

  bool trained() const { return weight_.trained() || bias_.trained(); }
  bool trains_weight() const { return weight_.trained(); }
  std::size_t workspace(const Device& device, const Common& common) const;
  /// Writes logits, [tokens, outputs] f32.
  void forward(const Call& call, const ops::Matrix& x, float* logits) const;
  /// Adds to the gradient of W, or overwrites it, if W is trained. Likewise for b. Adds d_logits · W to `d_x`
  /// if `adds`.
  void backward(const Call& call, const ops::Matrix& x, const ops::Matrix& d_logits, const ops::Matrix& d_x,
                bool adds) const;

 private:
  MatrixHandle weight_;
  VectorHandle bias_;
};

/// The expert of a mixture that every token takes (ExpertShape::shared): a gated MLP of linear layers. Its
/// output is multiplied by the sigmoid of a logit per token, if it has a gate.
class SharedExpert {
 public:
  SharedExpert(GroupBuilder& group, const Architecture& architecture);

  /// "shared_gate_up", "shared_down"
  Linear& gate_up() { return gate_up_; }
  const Linear& gate_up() const { return gate_up_; }
  Linear& down() { return down_; }
  const Linear& down() const { return down_; }
  bool trained() const { return trains_gate() || gate_up_.trained() || down_.trained(); }
  /// Whether backward has work to do.
  bool runs_back() const { return down_.runs_back() || trains_gate(); }
  void set_passes_on(bool passes_on);
  void reserve(BlockBuffers& buffers, const Common& common);
  std::size_t workspace(const Device& device, const Common& common) const;
  std::vector<Operation> operations(std::int64_t tokens) const;

  /// The input, [tokens, hidden]. The norm writes it, and no FP8 copy.
  ops::Matrix input(const Call& call) const { return gate_up_.input().values(call); }
  /// Computes the output, and the logits if there is a gate, from the input.
  void compute(const Call& call);
  /// sum += sigmoid(logits) * output; without a gate, sum += output.
  void add_to(const Call& call, const ops::Matrix& sum) const;
  /// Computes the gradients of its tensors from the stream's gradient in the scratch. Writes the gradient of
  /// the input to `d_input` if `passes_on`.
  void backward(const Call& call, const ops::Matrix& d_input, bool passes_on);

 private:
  void activate(const Call& call);
  bool trains_gate() const { return gate_ && gate_->trained(); }
  /// Returns the gradient of the output of the linear layers.
  ops::Matrix output_gradient(const Call& call) const;

  std::int64_t hidden_, width_;  ///< `width_` is the width of the rank's share
  ops::Activation activation_;
  std::optional<TokenGate> gate_;
  Linear gate_up_, down_;
  ops::Matrix gated_;        ///< [tokens, 2 * width]
  ops::Matrix made_;         ///< [tokens, hidden]
  float* logits_ = nullptr;  ///< [tokens]
  ops::Matrix d_made_, d_logits_;
};

}  // namespace octet::model
