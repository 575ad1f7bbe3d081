#include "octet/ops/quantize.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void amax(Stream& stream, ConstMatrix x, float* amax, const std::int32_t* skip) {
  check(is_matrix(x), "amax: x must be [rows, cols] T");
  check(amax != nullptr, "amax: amax is missing");
  const AmaxArgs args{x, amax, skip};
  OCTET_DISPATCH(stream, amax, args);
}

void quantize(Stream& stream, ConstMatrix x, const QuantizeInto& into) {
  check(is_matrix(x), "quantize: x must be [rows, cols] T");
  check(is_request(into), "quantize: an FP8 copy needs an FP8 format and a scale");
  const QuantizeArgs args{x, into};
  OCTET_DISPATCH(stream, quantize, args);
}

void quantize_each(Stream& stream, const QuantizeEachArgs& args) {
  check(is_matrix(args.x) && args.x.ld == args.x.cols, "quantize_each: x must be dense");
  check(args.count > 0 && args.count <= 65535 && args.x.rows % args.count == 0,
        "quantize_each: each matrix has as many rows");
  check(is_request(args.into), "quantize_each: an FP8 copy needs an FP8 format and a scale");
  check(args.skip == nullptr || (args.into.amax && !args.into.row && !args.into.transposed),
        "quantize_each: only an amax can be skipped");
  OCTET_DISPATCH(stream, quantize_each, args);
}

void transpose(Stream& stream, const TransposeArgs& args) {
  check(args.rows >= 0 && args.cols >= 0, "transpose: a matrix has no negative sizes");
  check(args.rows * args.cols == 0 || (args.from && args.to && args.from != args.to),
        "transpose: from and to are two matrices");
  OCTET_DISPATCH(stream, transpose, args);
}

void current_scale(Stream& stream, const CurrentScaleArgs& args) {
  check(args.count >= 0 && (args.count == 0 || (args.amax && args.formats && args.scale && args.scale_inv)),
        "current_scale: amax, formats, scale and scale_inv are needed");
  OCTET_DISPATCH(stream, current_scale, args);
}

void delayed_scale(Stream& stream, const DelayedScaleArgs& args) {
  check(args.count >= 0 &&
            (args.count == 0 || (args.amax && args.history && args.formats && args.scale && args.scale_inv)),
        "delayed_scale: amax, history, formats, scale and scale_inv are needed");
  check(args.count == 0 || args.length > 0, "delayed_scale: the history must hold at least one amax");
  check(args.stride >= args.count, "delayed_scale: rows of the history do not overlap");
  OCTET_DISPATCH(stream, delayed_scale, args);
}

}  // namespace octet::ops
