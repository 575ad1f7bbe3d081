#include "octet/ops/rms_norm.h"

#include "checks.h"
#include "cuda/scratch.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  check(is_matrix(args.residual) && args.residual.cols > 0, "rms_norm: residual must be [rows, hidden] T");
  check(!args.delta.data || (is_matrix(args.delta) && same_form(args.delta, args.residual)),
        "rms_norm: delta must have the shape and dtype of residual");
  check(!args.sum.data || (is_matrix(args.sum) && same_form(args.sum, args.residual)),
        "rms_norm: sum must have the shape and dtype of residual");
  check(!args.out.data || (is_matrix(args.out) && same_form(args.out, args.residual)),
        "rms_norm: out must have the shape and dtype of residual");
  check(args.weight != nullptr, "rms_norm: weight is missing");
  check(is_request(args.quantize) || is_row_request(args.quantize),
        "rms_norm: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, rms_norm, args);
}

std::size_t rms_norm_backward_workspace(const Device& device, std::int64_t rows, std::int64_t hidden) {
  const std::int64_t block = device.stands_for() == DeviceKind::cuda ? cuda::norm_backward_block(rows, hidden)
                                                                     : rms_norm_backward_block(rows);
  return static_cast<std::size_t>((rows + block - 1) / block) * static_cast<std::size_t>(hidden) *
         sizeof(float);
}

void rms_norm_backward(Stream& stream, const RmsNormBackwardArgs& args) {
  check(is_matrix(args.dy) && args.dy.cols > 0, "rms_norm_backward: dy must be [rows, hidden] T");
  check(is_matrix(args.x) && same_form(args.x, args.dy),
        "rms_norm_backward: x must have the shape and dtype of dy");
  check(is_matrix(args.d_residual) && same_form(args.d_residual, args.dy),
        "rms_norm_backward: d_residual must have the shape and dtype of dy");
  check(args.dy.rows == 0 || (args.rstd && args.weight), "rms_norm_backward: rstd and weight are needed");
  check(!args.d_weight ||
            args.workspace.bytes >= rms_norm_backward_workspace(stream.device(), args.dy.rows, args.dy.cols),
        "rms_norm_backward: the workspace is smaller than rms_norm_backward_workspace says");
  check(is_request(args.quantize), "rms_norm_backward: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, rms_norm_backward, args);
}

}  // namespace octet::ops
