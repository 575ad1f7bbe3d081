#include "octet/ops/embedding_noise.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void embedding_noise(Stream& stream, const EmbeddingNoiseArgs& args) {
  check(is_matrix(args.x), "embedding_noise: x must be [tokens, cols] T");
  check(args.x.rows == 0 || (args.names != nullptr && args.cu_seqlens != nullptr && args.documents > 0),
        "embedding_noise: every token has a name and a document");
  check(args.alpha >= 0.0f, "embedding_noise: alpha must not be negative");
  OCTET_DISPATCH(stream, embedding_noise, args);
}

}  // namespace octet::ops
