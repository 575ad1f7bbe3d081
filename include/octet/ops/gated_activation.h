#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// clamped: act(g) = g * sigmoid(1.702 g), with bounds on gate and up. See GatedActivationArgs. xielu: only
/// without a gate (ops/activation.h).
enum class Activation { silu, gelu_tanh, clamped, xielu };

/// h = act(gate) * up (Shazeer 2020, arXiv:2002.05202) with gate = gate_up[:, :width], up = gate_up[:,
/// width:]. clamped (gpt-oss, arXiv:2508.10925): h = act(min(gate, limit)) * (1 + min(max(up, -limit),
/// limit)).
struct GatedActivationArgs {
  ConstMatrix gate_up;  ///< [rows, 2 * width] T
  Activation activation = Activation::silu;
  Matrix out;  ///< [rows, width] T; null data: only the FP8 copy is wanted
  QuantizeInto quantize;
  float limit = 7.0f;  ///< for clamped
};
void gated_activation(Stream& stream, const GatedActivationArgs& args);

/// Backward of gated_activation(). With clamped, values beyond a bound have no gradient.
struct GatedActivationBackwardArgs {
  ConstMatrix gate_up;
  ConstMatrix d_out;  ///< [rows, width] T
  Activation activation = Activation::silu;
  Matrix d_gate_up;  ///< [rows, 2 * width] T; may be gate_up itself; null data: only the FP8 copy is wanted
  QuantizeInto quantize;
  float limit = 7.0f;  ///< for clamped
};
void gated_activation_backward(Stream& stream, const GatedActivationBackwardArgs& args);

}  // namespace octet::ops
