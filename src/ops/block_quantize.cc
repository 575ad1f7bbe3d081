#include "octet/ops/block_quantize.h"

#include "block_scale.h"
#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void block_quantize(Stream& stream, const BlockQuantizeArgs& args) {
  check(is_matrix(args.x), "block_quantize: x must be [rows, cols] T");
  check(args.scaling != Scaling::tensor, "block_quantize: scales belong to rows or squares");
  check((args.row == nullptr) == (args.scale_inv == nullptr) &&
            (args.transposed == nullptr) == (args.transposed_scale_inv == nullptr),
        "block_quantize: each copy comes with its scales");
  check(args.scaling != Scaling::whole_rows ||
            (args.row != nullptr && args.transposed == nullptr && args.seen == nullptr),
        "block_quantize: scales of whole rows need the row copy, without statistics");
  check(args.seen == nullptr || args.row != nullptr, "block_quantize: statistics need the row copy");
  if (args.x.rows == 0 || args.x.cols == 0) return;
  OCTET_DISPATCH(stream, block_quantize, args);
}

float block_scale(float amax) {
  return power_of_two(-block_exponent(std::bit_cast<std::uint32_t>(amax) & 0x7FFFFFFFu));
}

}  // namespace octet::ops
