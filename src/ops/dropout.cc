#include "octet/ops/dropout.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void dropout(Stream& stream, const DropoutArgs& args) {
  check(is_matrix(args.x) && is_matrix(args.out) && same_form(args.x, args.out),
        "dropout: x and out must be [tokens, cols] T");
  check(args.x.rows == 0 || args.names != nullptr, "dropout: every token has a name");
  check(args.rate >= 0.0f && args.rate < 1.0f, "dropout: the rate is at least 0 and below 1");
  OCTET_DISPATCH(stream, dropout, args);
}

}  // namespace octet::ops
