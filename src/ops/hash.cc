#include "octet/ops/hash.h"

#include "checks_kernels.h"
#include "dispatch.h"

namespace octet::ops {

void add_hash(Stream& stream, const HashArgs& args) {
  check(args.bytes >= 0 && (args.bytes == 0 || args.data) && args.to, "add_hash: data and to are needed");
  check(args.at % 8 == 0, "add_hash: bytes begin at a whole word");
  OCTET_DISPATCH(stream, add_hash, args);
}

}  // namespace octet::ops
