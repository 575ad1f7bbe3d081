#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// Attention with a gate for each element of its output (Qiu et al. 2025, arXiv:2505.06708). The projection
/// has the query and then the gate of each query head, then keys and values. Its width is heads.qkv_width() +
/// q_heads * head_dim. take_output_gates() copies queries, keys and values in the layout of ops::attention().
struct TakeOutputGatesArgs {
  ConstMatrix projected;  ///< [tokens, width of the projection] T
  Heads heads;
  Matrix qkv;  ///< [tokens, heads.qkv_width()] T
};
void take_output_gates(Stream& stream, const TakeOutputGatesArgs& args);

/// out = attended * sigmoid(gate), rounded once.
struct OutputGateArgs {
  ConstMatrix attended;   ///< [tokens, q_heads * head_dim] T: output of ops::attention()
  ConstMatrix projected;  ///< only the gates are read
  Heads heads;
  Matrix out;             ///< [tokens, q_heads * head_dim] T; may be attended; null data: only the FP8 copy
  QuantizeInto quantize;  ///< optional FP8 copy, with one scale or with scales of rows
};
void output_gate(Stream& stream, const OutputGateArgs& args);

/// d_attended = d_out * sigmoid(gate). The gradient of a gate is written to its columns of d_projected:
/// d_out * attended * sigmoid(gate) * (1 - sigmoid(gate)).
struct OutputGateBackwardArgs {
  ConstMatrix attended;   ///< [tokens, q_heads * head_dim] T: not gated
  ConstMatrix projected;  ///< only the gates are read
  ConstMatrix d_out;      ///< [tokens, q_heads * head_dim] T
  Heads heads;
  Matrix d_attended;   ///< [tokens, q_heads * head_dim] T, may be d_out itself
  Matrix d_projected;  ///< [tokens, width of the projection] T: only the columns of gates are written
};
void output_gate_backward(Stream& stream, const OutputGateBackwardArgs& args);

/// Backward of take_output_gates(): copies d_qkv to its columns of d_projected. Columns of gates stay.
struct PutOutputGatesArgs {
  ConstMatrix d_qkv;  ///< [tokens, heads.qkv_width()] T
  Heads heads;
  Matrix d_projected;  ///< [tokens, width of the projection] T
};
void put_output_gates(Stream& stream, const PutOutputGatesArgs& args);

}  // namespace octet::ops
