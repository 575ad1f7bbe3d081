#include "octet/ops/gated_activation.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void gated_activation(Stream& stream, const GatedActivationArgs& args) {
  check(is_matrix(args.gate_up) && args.gate_up.cols % 2 == 0,
        "gated_activation: gate_up must be [rows, 2 * width] T");
  check(!args.out.data || (is_matrix(args.out) && args.out.dtype == args.gate_up.dtype &&
                           args.out.rows == args.gate_up.rows && args.out.cols == args.gate_up.cols / 2),
        "gated_activation: out must be [rows, width] of gate_up's dtype");
  check(args.activation != Activation::xielu, "gated_activation: xielu is an activation without a gate");
  check(args.limit > 0.0f, "gated_activation: the limit is above 0");
  check(is_request(args.quantize) || is_row_request(args.quantize),
        "gated_activation: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, gated_activation, args);
}

void gated_activation_backward(Stream& stream, const GatedActivationBackwardArgs& args) {
  check(is_matrix(args.gate_up) && args.gate_up.cols % 2 == 0,
        "gated_activation_backward: gate_up must be [rows, 2 * width] T");
  check(is_matrix(args.d_out) && args.d_out.dtype == args.gate_up.dtype &&
            args.d_out.rows == args.gate_up.rows && args.d_out.cols == args.gate_up.cols / 2,
        "gated_activation_backward: d_out must be [rows, width] of gate_up's dtype");
  const bool empty = args.gate_up.rows * args.gate_up.cols == 0;
  check(
      args.d_gate_up.data != nullptr ? is_matrix(args.d_gate_up) && same_form(args.d_gate_up, args.gate_up)
                                     : empty || args.quantize.row || args.quantize.transposed,
      "gated_activation_backward: d_gate_up must have the shape and dtype of gate_up, or only an FP8 copy is "
      "wanted");
  check(args.activation != Activation::xielu,
        "gated_activation_backward: xielu is an activation without a gate");
  check(args.limit > 0.0f, "gated_activation_backward: the limit is above 0");
  check(is_request(args.quantize), "gated_activation_backward: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, gated_activation_backward, args);
}

}  // namespace octet::ops
