#include "octet/ops/elementwise.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

bool is_compute(DType t) {
  return t == DType::f32 || t == DType::bf16;
}

}  // namespace

void convert(Stream& stream, const void* from, DType from_dtype, void* to, DType to_dtype,
             std::int64_t count) {
  check((is_compute(from_dtype) || from_dtype == DType::f16) &&
            (is_compute(to_dtype) || to_dtype == DType::f16),
        "convert: dtypes must be f32, bf16 or f16");
  check(count >= 0 && (count == 0 || (from && to)), "convert: from and to are needed");
  const ConvertArgs args{from, from_dtype, to, to_dtype, count};
  OCTET_DISPATCH(stream, convert, args);
}

void add(Stream& stream, const void* from, DType from_dtype, float* to, std::int64_t count) {
  check(is_compute(from_dtype), "add: from must be f32 or bf16");
  check(count >= 0 && (count == 0 || (from && to)), "add: from and to are needed");
  const AddArgs args{from, from_dtype, to, count};
  OCTET_DISPATCH(stream, add, args);
}

void fill(Stream& stream, float* x, float value, std::int64_t count) {
  check(count >= 0 && (count == 0 || x), "fill: x is missing");
  const FillArgs args{x, value, count};
  OCTET_DISPATCH(stream, fill, args);
}

void scale_by(Stream& stream, const Matrix& x, const float* factor) {
  check(is_matrix(x) && x.ld == x.cols, "scale_by: x must be a dense [rows, cols] T");
  check(factor != nullptr, "scale_by: factor is missing");
  const ScaleByArgs args{x.data, x.dtype, factor, x.rows * x.cols};
  OCTET_DISPATCH(stream, scale_by, args);
}

void random_normal(Stream& stream, const RandomNormalArgs& args) {
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "random_normal: out must be f32 or bf16");
  check(args.count >= 0 && (args.count == 0 || args.out), "random_normal: out is missing");
  check(args.width == 0 ||
            (args.width > 0 && args.column >= 0 && args.column < args.width && args.pitch >= args.width),
        "random_normal: the first element lies in a row, and rows do not overlap");
  OCTET_DISPATCH(stream, random_normal, args);
}

}  // namespace octet::ops
