#include "octet/ops/layer_norm.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"
#include "octet/ops/rms_norm.h"

namespace octet::ops {

void layer_norm(Stream& stream, const LayerNormArgs& args) {
  check(is_matrix(args.residual) && args.residual.cols > 0, "layer_norm: residual must be [rows, hidden] T");
  check(!args.delta.data || (is_matrix(args.delta) && same_form(args.delta, args.residual)),
        "layer_norm: delta must have the shape and dtype of residual");
  check(!args.sum.data || (is_matrix(args.sum) && same_form(args.sum, args.residual)),
        "layer_norm: sum must have the shape and dtype of residual");
  check(!args.out.data || (is_matrix(args.out) && same_form(args.out, args.residual)),
        "layer_norm: out must have the shape and dtype of residual");
  check(args.weight != nullptr, "layer_norm: weight is missing");
  check(is_request(args.quantize) || is_row_request(args.quantize),
        "layer_norm: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, layer_norm, args);
}

// Partial sums of d_weight, then of d_bias.
std::size_t layer_norm_backward_workspace(const Device& device, std::int64_t rows, std::int64_t hidden) {
  return 2 * rms_norm_backward_workspace(device, rows, hidden);
}

void layer_norm_backward(Stream& stream, const LayerNormBackwardArgs& args) {
  check(is_matrix(args.dy) && args.dy.cols > 0, "layer_norm_backward: dy must be [rows, hidden] T");
  check(is_matrix(args.x) && same_form(args.x, args.dy),
        "layer_norm_backward: x must have the shape and dtype of dy");
  check(is_matrix(args.d_residual) && same_form(args.d_residual, args.dy),
        "layer_norm_backward: d_residual must have the shape and dtype of dy");
  check(args.dy.rows == 0 || (args.mean && args.rstd && args.weight),
        "layer_norm_backward: mean, rstd and weight are needed");
  check(
      (!args.d_weight && !args.d_bias) ||
          args.workspace.bytes >= layer_norm_backward_workspace(stream.device(), args.dy.rows, args.dy.cols),
      "layer_norm_backward: the workspace is smaller than layer_norm_backward_workspace says");
  check(is_request(args.quantize), "layer_norm_backward: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, layer_norm_backward, args);
}

}  // namespace octet::ops
