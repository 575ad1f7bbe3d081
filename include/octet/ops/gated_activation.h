#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

enum class Activation { silu, gelu_tanh };

/// h = act(gate) * up (Shazeer 2020, arXiv:2002.05202) with gate = gate_up[:, :width], up = gate_up[:,
/// width:].
struct GatedActivationArgs {
  ConstMatrix gate_up;  ///< [rows, 2 * width] T
  Activation activation = Activation::silu;
  Matrix out;  ///< [rows, width] T; null data: only the FP8 copy is wanted
  QuantizeInto quantize;
};
void gated_activation(Stream& stream, const GatedActivationArgs& args);

struct GatedActivationBackwardArgs {
  ConstMatrix gate_up;
  ConstMatrix d_out;  ///< [rows, width] T
  Activation activation = Activation::silu;
  Matrix d_gate_up;  ///< [rows, 2 * width] T; may be gate_up itself; null data: only the FP8 copy is wanted
  QuantizeInto quantize;
};
void gated_activation_backward(Stream& stream, const GatedActivationBackwardArgs& args);

}  // namespace octet::ops
