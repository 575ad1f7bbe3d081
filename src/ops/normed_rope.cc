#include "octet/ops/normed_rope.h"

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {
namespace {

void check_heads(const Heads& heads, const ConstMatrix& qkv, std::int64_t rotated) {
  check(is_matrix(qkv), "normed_rope: qkv must be [tokens, qkv_width] T");
  check(heads.head_dim > 0 && heads.head_dim % 2 == 0 && heads.head_dim <= kMaxNormedHeadDim,
        "normed_rope: head_dim must be even and at most kMaxNormedHeadDim");
  check(heads.q_heads >= 0 && heads.kv_heads >= 0 && heads.qkv_width() == qkv.cols,
        "normed_rope: qkv must be as wide as its heads");
  check(rotated >= 0 && rotated <= heads.head_dim && rotated % 2 == 0,
        "normed_rope: an even number of dimensions of a head rotates");
}

bool holds_heads(const ConstMatrix& raw, const Heads& heads, const ConstMatrix& qkv) {
  return is_matrix(raw) && raw.dtype == qkv.dtype && raw.rows == qkv.rows &&
         raw.cols == (heads.q_heads + heads.kv_heads) * heads.head_dim;
}

}  // namespace

void normed_rope(Stream& stream, const NormedRopeArgs& args) {
  check_heads(args.heads, args.qkv, args.rotated);
  check(!args.raw.data || holds_heads(args.raw, args.heads, args.qkv),
        "normed_rope: raw must hold the query and key heads of qkv");
  check(args.qkv.rows == 0 || (args.q_weight && args.k_weight && args.positions && args.cosine && args.sine),
        "normed_rope: weights, positions and tables are needed");
  OCTET_DISPATCH(stream, normed_rope, args);
}

std::size_t normed_rope_backward_workspace(const Device&, std::int64_t tokens, const Heads& heads) {
  const std::int64_t block = rms_norm_backward_block(tokens);
  return static_cast<std::size_t>((tokens + block - 1) / block) * 2 *
         static_cast<std::size_t>(heads.head_dim) * sizeof(float);
}

void normed_rope_backward(Stream& stream, const NormedRopeBackwardArgs& args) {
  check_heads(args.heads, args.d_qkv, args.rotated);
  check(holds_heads(args.raw, args.heads, args.d_qkv),
        "normed_rope_backward: raw must hold the query and key heads of forward");
  check(args.d_qkv.rows == 0 ||
            (args.rstd && args.q_weight && args.k_weight && args.positions && args.cosine && args.sine),
        "normed_rope_backward: rstd, weights, positions and tables are needed");
  check((!args.d_q_weight && !args.d_k_weight) ||
            args.workspace.bytes >=
                normed_rope_backward_workspace(stream.device(), args.d_qkv.rows, args.heads),
        "normed_rope_backward: the workspace is smaller than normed_rope_backward_workspace says");
  check(is_request(args.quantize), "normed_rope_backward: an FP8 copy needs an FP8 format and a scale");
  OCTET_DISPATCH(stream, normed_rope_backward, args);
}

}  // namespace octet::ops
