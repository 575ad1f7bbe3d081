#include "octet/ops/dora.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void dora_scale(Stream& stream, const DoraScaleArgs& args) {
  const Operand& w = args.weight;
  const bool fp8 = is_fp8(w.dtype);
  check(fp8 || w.dtype == DType::f32 || w.dtype == DType::bf16, "dora_scale: W must be f32, bf16 or FP8");
  check(!fp8 || (w.scaling == Scaling::tensor && w.scale_inv != nullptr),
        "dora_scale: an FP8 W has one scale");
  check(is_matrix(args.a) && is_matrix(args.b) && args.a.dtype == args.b.dtype && args.a.cols == w.cols &&
            args.b.rows == w.rows && args.a.rows == args.b.cols,
        "dora_scale: A must be [rank, in] and B [out, rank]");
  check(w.rows == 0 || (w.data && args.magnitude && args.scale && args.norm),
        "dora_scale: a vector is missing");
  OCTET_DISPATCH(stream, dora_scale, args);
}

void scale_columns(Stream& stream, const ScaleColumnsArgs& args) {
  check(is_matrix(args.x) && is_matrix(args.out) && same_form(args.x, args.out),
        "scale_columns: x and out must be [rows, cols] T");
  check(!args.addend.data || (is_matrix(args.addend) && same_form(args.addend, args.x)),
        "scale_columns: addend must be [rows, cols] T");
  check(args.x.rows * args.x.cols == 0 || args.scale, "scale_columns: scale is missing");
  OCTET_DISPATCH(stream, scale_columns, args);
}

void dot_columns(Stream& stream, const DotColumnsArgs& args) {
  check(is_matrix(args.x) && is_matrix(args.y) && same_form(args.x, args.y),
        "dot_columns: x and y must be [rows, cols] T");
  check(args.x.rows * args.x.cols == 0 || (args.divisor && args.sums), "dot_columns: a vector is missing");
  OCTET_DISPATCH(stream, dot_columns, args);
}

}  // namespace octet::ops
