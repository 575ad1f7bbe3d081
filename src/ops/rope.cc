#include "octet/ops/rope.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void rope_table(Stream& stream, const RopeTableArgs& args) {
  check(args.positions >= 0 && args.half_dim >= 0, "rope_table: sizes must not be negative");
  check(args.positions * args.half_dim == 0 || (args.inv_freq && args.cosine && args.sine),
        "rope_table: inv_freq, cosine and sine are needed");
  OCTET_DISPATCH(stream, rope_table, args);
}

void rope(Stream& stream, const RopeArgs& args) {
  check(is_matrix(args.qkv), "rope: qkv must be [tokens, qkv_width] T");
  check(args.heads.head_dim > 0 && args.heads.head_dim % 2 == 0, "rope: head_dim must be even");
  check(args.heads.q_heads >= 0 && args.heads.kv_heads >= 0 && args.heads.qkv_width() == args.qkv.cols,
        "rope: qkv must be as wide as its heads");
  check(args.rotated >= 0 && args.rotated <= args.heads.head_dim && args.rotated % 2 == 0,
        "rope: an even number of dimensions of a head rotates");
  check(args.qkv.rows == 0 || (args.positions && args.cosine && args.sine),
        "rope: positions and tables are needed");
  check(is_request(args.quantize), "rope: an FP8 copy needs an FP8 format and a scale");
  check(args.keep_values || args.quantize.row || args.quantize.transposed,
        "rope: the values or an FP8 copy are wanted");
  OCTET_DISPATCH(stream, rope, args);
}

}  // namespace octet::ops
