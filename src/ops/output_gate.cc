#include "octet/ops/output_gate.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

/// Throws unless the matrix is a projection with queries, gates, keys and values.
void check_gated_projection(const ConstMatrix& projected, const Heads& heads) {
  check(heads.head_dim > 0 && heads.kv_heads > 0 && heads.q_heads > 0 && heads.q_heads % heads.kv_heads == 0,
        "output gate: every KV head serves equally many query heads, at least one");
  check(is_matrix(projected) && projected.cols == heads.qkv_width() + heads.q_heads * heads.head_dim,
        "output gate: the projection must be [tokens, heads.qkv_width() + q_heads * head_dim] T");
}

bool is_attended(const ConstMatrix& m, const ConstMatrix& projected, const Heads& heads) {
  return is_of(m, projected.dtype, projected.rows, heads.q_heads * heads.head_dim);
}

bool is_gated_qkv(const ConstMatrix& m, const ConstMatrix& projected, const Heads& heads) {
  return is_of(m, projected.dtype, projected.rows, heads.qkv_width());
}

}  // namespace

void take_output_gates(Stream& stream, const TakeOutputGatesArgs& args) {
  check_gated_projection(args.projected, args.heads);
  check(is_gated_qkv(args.qkv, args.projected, args.heads),
        "take_output_gates: qkv must be [tokens, heads.qkv_width()] of the projection's dtype");
  if (args.projected.rows == 0) return;
  OCTET_DISPATCH(stream, take_output_gates, args);
}

void put_output_gates(Stream& stream, const PutOutputGatesArgs& args) {
  check_gated_projection(args.d_projected, args.heads);
  check(is_gated_qkv(args.d_qkv, args.d_projected, args.heads),
        "put_output_gates: d_qkv must be [tokens, heads.qkv_width()] of d_projected's dtype");
  if (args.d_projected.rows == 0) return;
  OCTET_DISPATCH(stream, put_output_gates, args);
}

void output_gate(Stream& stream, const OutputGateArgs& args) {
  check_gated_projection(args.projected, args.heads);
  check(is_attended(args.attended, args.projected, args.heads),
        "output_gate: attended must be [tokens, q_heads * head_dim] of the projection's dtype");
  const bool empty = args.projected.rows == 0;
  check(args.out.data != nullptr ? is_attended(args.out, args.projected, args.heads)
                                 : empty || args.quantize.row || args.quantize.transposed,
        "output_gate: out must have the shape and dtype of attended, or only an FP8 copy is wanted");
  check(is_request(args.quantize) || is_row_request(args.quantize),
        "output_gate: an FP8 copy needs an FP8 format and a scale");
  if (empty) return;
  OCTET_DISPATCH(stream, output_gate, args);
}

void output_gate_backward(Stream& stream, const OutputGateBackwardArgs& args) {
  check_gated_projection(args.projected, args.heads);
  for (const ConstMatrix& m : {args.attended, args.d_out, ConstMatrix(args.d_attended)}) {
    check(is_attended(m, args.projected, args.heads),
          "output_gate_backward: attended, d_out and d_attended must be [tokens, q_heads * head_dim] of the "
          "projection's dtype");
  }
  check(is_matrix(args.d_projected) && same_form(args.d_projected, args.projected),
        "output_gate_backward: d_projected must have the shape and dtype of projected");
  if (args.projected.rows == 0) return;
  OCTET_DISPATCH(stream, output_gate_backward, args);
}

}  // namespace octet::ops
