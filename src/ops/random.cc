#include "octet/ops/random.h"

#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void random_normal(Stream& stream, const RandomNormalArgs& args) {
  check(args.dtype == DType::f32 || args.dtype == DType::bf16, "random_normal: out must be f32 or bf16");
  check(args.count >= 0 && (args.count == 0 || args.out), "random_normal: out is missing");
  check(args.width == 0 ||
            (args.width > 0 && args.column >= 0 && args.column < args.width && args.pitch >= args.width),
        "random_normal: the first element lies in a row, and rows do not overlap");
  OCTET_DISPATCH(stream, random_normal, args);
}

}  // namespace octet::ops
