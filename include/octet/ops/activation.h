#pragma once

#include "octet/ops/gated_activation.h"
#include "octet/ops/types.h"

namespace octet::ops {

/// The numbers of xIELU (Huang and Schlag 2024, arXiv:2411.13010) in device memory, one f32 each. With p =
/// softplus(alpha_p) and n = beta + softplus(alpha_n):
///   x > 0:  p x² + beta x
///   else:   n (exp(min(x, eps)) - 1 - x) + beta x
struct Xielu {
  const float* alpha_p = nullptr;
  const float* alpha_n = nullptr;
  const float* beta = nullptr;
  const float* eps = nullptr;  ///< below 0
};

/// h = act(x): the activation of an MLP without a gate.
struct ActivationArgs {
  ConstMatrix x;                             ///< [rows, width] T
  Activation activation = Activation::silu;  ///< not clamped
  Xielu xielu;                               ///< for xielu
  Matrix out;                                ///< [rows, width] T; null data: only the FP8 copy is wanted
  QuantizeInto quantize;
};
void activation(Stream& stream, const ActivationArgs& args);

/// Backward of activation(). The gradients of alpha_p and alpha_n are sums over all elements, in an order
/// that depends only on the shape.
struct ActivationBackwardArgs {
  ConstMatrix x;
  ConstMatrix d_out;  ///< [rows, width] T
  Activation activation = Activation::silu;
  Xielu xielu;
  /// [rows, width] T; may be x itself. Null data: only the FP8 copy is wanted, which xielu does not support.
  Matrix d_x;
  QuantizeInto quantize;
  float* d_alpha_p = nullptr;  ///< added to; null: not wanted
  float* d_alpha_n = nullptr;
  Workspace workspace;  ///< for gradients of alphas: at least activation_backward_workspace bytes
};
void activation_backward(Stream& stream, const ActivationBackwardArgs& args);
std::size_t activation_backward_workspace(const Device& device, std::int64_t rows, std::int64_t width);

}  // namespace octet::ops
