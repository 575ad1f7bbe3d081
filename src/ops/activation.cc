#include "octet/ops/activation.h"

#include "checks.h"
#include "cuda/scratch.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

bool is_whole(const Xielu& of) {
  return of.alpha_p && of.alpha_n && of.beta && of.eps;
}

}  // namespace

void activation(Stream& stream, const ActivationArgs& args) {
  check(is_matrix(args.x), "activation: x must be [rows, width] T");
  check(!args.out.data || (is_matrix(args.out) && same_form(args.out, args.x)),
        "activation: out must have the shape and dtype of x");
  check(args.activation != Activation::clamped, "activation: clamped is an activation with a gate");
  check(args.activation != Activation::xielu || is_whole(args.xielu),
        "activation: xielu needs its four numbers");
  check(is_request(args.quantize) || is_row_request(args.quantize),
        "activation: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, activation, args);
}

// Two sums for each block of rows.
std::size_t activation_backward_workspace(const Device& device, std::int64_t rows, std::int64_t width) {
  const std::int64_t block = device.stands_for() == DeviceKind::cuda ? cuda::norm_backward_block(rows, width)
                                                                     : rms_norm_backward_block(rows);
  return static_cast<std::size_t>((rows + block - 1) / block) * 2 * sizeof(double);
}

void activation_backward(Stream& stream, const ActivationBackwardArgs& args) {
  const bool xielu = args.activation == Activation::xielu;
  check(is_matrix(args.x), "activation_backward: x must be [rows, width] T");
  check(is_matrix(args.d_out) && same_form(args.d_out, args.x),
        "activation_backward: d_out must have the shape and dtype of x");
  const bool empty = args.x.rows * args.x.cols == 0;
  check(args.d_x.data != nullptr ? is_matrix(args.d_x) && same_form(args.d_x, args.x)
                                 : empty || (!xielu && (args.quantize.row || args.quantize.transposed)),
        "activation_backward: d_x must have the shape and dtype of x, or only an FP8 copy is wanted");
  check(args.activation != Activation::clamped, "activation_backward: clamped is an activation with a gate");
  check(!xielu || is_whole(args.xielu), "activation_backward: xielu needs its four numbers");
  check(xielu || (!args.d_alpha_p && !args.d_alpha_n), "activation_backward: only xielu has gradients");
  check((!args.d_alpha_p && !args.d_alpha_n) ||
            args.workspace.bytes >= activation_backward_workspace(stream.device(), args.x.rows, args.x.cols),
        "activation_backward: the workspace is smaller than activation_backward_workspace says");
  check(is_request(args.quantize), "activation_backward: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, activation_backward, args);
}

}  // namespace octet::ops
