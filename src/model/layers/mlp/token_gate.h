#pragma once

#include <cstddef>

#include "layers/group_builder.h"
#include "layers/pass.h"

namespace octet::model {

/// logits = x · Wᵀ for the few outputs that decide about a token: the router of a mixture, and the gate of a
/// shared expert. W and x are in the compute dtype, logits in fp32.
class TokenGate {
 public:
  /// `weight`: [outputs, hidden].
  explicit TokenGate(MatrixHandle weight) : weight_(std::move(weight)) {}

  bool trained() const { return weight_.trained(); }
  std::size_t workspace(const Device& device, const Common& common) const;
  /// Writes logits, [tokens, outputs] f32.
  void forward(const Call& call, const ops::Matrix& x, float* logits) const;
  /// Adds to the gradient of W, or overwrites it, if W is trained. Adds d_logits · W to `d_x` if `adds`.
  void backward(const Call& call, const ops::Matrix& x, const ops::Matrix& d_logits, const ops::Matrix& d_x,
                bool adds) const;

 private:
  MatrixHandle weight_;
};

}  // namespace octet::model
