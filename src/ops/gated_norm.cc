#include "octet/ops/gated_norm.h"

#include <algorithm>

#include "cuda/delta_scratch.h"
#include "delta_checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

void check_gated(const ConstMatrix& o, const ConstMatrix& projected, const DeltaColumns& columns,
                 const float* weight, float eps) {
  check(are_delta_columns(columns),
        "gated norm: the heads must be heads of delta_rule(), and groups must divide key_heads");
  check(is_matrix(o) && o.cols == columns.heads.values(), "gated norm: o must be [tokens, heads.values()] T");
  check(is_of(projected, o.dtype, o.rows, columns.width()),
        "gated norm: projected must be [tokens, columns.width()] of o's dtype");
  check(weight != nullptr, "gated norm: weight is missing");
  check(eps >= 0.0f, "gated norm: eps must not be negative");
}

}  // namespace

void gated_norm(Stream& stream, const GatedNormArgs& args) {
  check_gated(args.o, args.projected, args.columns, args.weight, args.eps);
  const bool empty = args.o.rows == 0;
  check(args.out.data != nullptr ? is_matrix(args.out) && same_form(args.out, args.o)
                                 : empty || args.quantize.row || args.quantize.transposed,
        "gated_norm: out must have the shape and dtype of o, or only an FP8 copy is wanted");
  check(is_request(args.quantize) || is_row_request(args.quantize),
        "gated_norm: an FP8 copy needs an FP8 format and a scale");
  if (empty) return;
  OCTET_DISPATCH(stream, gated_norm, args);
}

void gated_norm_backward(Stream& stream, const GatedNormBackwardArgs& args) {
  check_gated(args.o, args.projected, args.columns, args.weight, args.eps);
  check(is_matrix(args.d_out) && same_form(args.d_out, args.o),
        "gated_norm_backward: d_out must have the shape and dtype of o");
  check(is_matrix(args.d_o) && same_form(args.d_o, args.o),
        "gated_norm_backward: d_o must have the shape and dtype of o");
  check(is_matrix(args.d_projected) && same_form(args.d_projected, args.projected),
        "gated_norm_backward: d_projected must have the shape and dtype of projected");
  check(!args.d_weight ||
            args.workspace.bytes >= gated_norm_workspace(stream.device(), args.columns.heads, args.o.rows),
        "gated_norm_backward: the workspace is smaller than gated_norm_workspace says");
  if (args.o.rows == 0) return;
  OCTET_DISPATCH(stream, gated_norm_backward, args);
}

std::size_t gated_norm_workspace(const Device& device, const DeltaHeads& heads, std::int64_t tokens) {
  check(are_delta_heads(heads) && tokens >= 0,
        "gated_norm_workspace: the heads must be heads of delta_rule(), and tokens must not be negative");
  const std::int64_t block = rms_norm_backward_block(tokens);
  const std::size_t here =
      static_cast<std::size_t>((tokens + block - 1) / block * heads.value_dim) * sizeof(float);
  if (device.stands_for() != DeviceKind::cuda) return here;
  const std::size_t there = cuda::gated_norm_workspace(heads, tokens);
  return device.kind() == DeviceKind::cpu ? std::max(there, here) : there;
}

}  // namespace octet::ops
