#include "octet/ops/latent_heads.h"

#include "checks.h"
#include "dispatch.h"

namespace octet::ops {
namespace cpu {
void join_latent_heads(const JoinLatentHeadsArgs& args);
void split_latent_heads(const SplitLatentHeadsArgs& args);
void cut_head_values(const CutHeadValuesArgs& args);
void pad_head_values(const PadHeadValuesArgs& args);
}  // namespace cpu
namespace cuda {
void join_latent_heads(Stream& stream, const JoinLatentHeadsArgs& args);
void split_latent_heads(Stream& stream, const SplitLatentHeadsArgs& args);
void cut_head_values(Stream& stream, const CutHeadValuesArgs& args);
void pad_head_values(Stream& stream, const PadHeadValuesArgs& args);
}  // namespace cuda

namespace {

void check_latent_heads(const LatentHeads& heads) {
  check(heads.heads > 0 && heads.nope_dim > 0 && heads.rope_dim > 0 && heads.value_dim > 0 &&
            heads.value_dim <= heads.key_dim(),
        "latent heads: there are heads with both parts of a key, and values are not wider than keys");
}

}  // namespace

void join_latent_heads(Stream& stream, const JoinLatentHeadsArgs& args) {
  check_latent_heads(args.heads);
  const auto fits = [&](const ConstMatrix& m, std::int64_t cols) {
    return is_of(m, args.qkv.dtype, args.qkv.rows, cols);
  };
  check(fits(args.qkv, args.heads.padded().qkv_width()) && fits(args.queries, args.heads.keys()) &&
            fits(args.expanded, args.heads.expanded()) && fits(args.rope_key, args.heads.rope_dim),
        "join_latent_heads: all matrices must have the tokens and the dtype of qkv, and the widths of the "
        "contract");
  if (args.qkv.rows == 0) return;
  OCTET_DISPATCH(stream, join_latent_heads, args);
}

void split_latent_heads(Stream& stream, const SplitLatentHeadsArgs& args) {
  check_latent_heads(args.heads);
  const auto fits = [&](const ConstMatrix& m, std::int64_t cols) {
    return is_of(m, args.d_qkv.dtype, args.d_qkv.rows, cols);
  };
  check(fits(args.d_qkv, args.heads.padded().qkv_width()) && fits(args.d_queries, args.heads.keys()) &&
            fits(args.d_expanded, args.heads.expanded()) && fits(args.d_rope_key, args.heads.rope_dim),
        "split_latent_heads: all matrices must have the tokens and the dtype of d_qkv, and the widths of the "
        "contract");
  if (args.d_qkv.rows == 0) return;
  OCTET_DISPATCH(stream, split_latent_heads, args);
}

void cut_head_values(Stream& stream, const CutHeadValuesArgs& args) {
  check_latent_heads(args.heads);
  check(is_matrix(args.padded) && args.padded.cols == args.heads.keys(),
        "cut_head_values: padded must be [tokens, heads.keys()] T");
  const bool empty = args.padded.rows == 0;
  check(
      args.out.data != nullptr ? is_of(args.out, args.padded.dtype, args.padded.rows, args.heads.values())
                               : empty || args.quantize.row || args.quantize.transposed,
      "cut_head_values: out must be [tokens, heads.values()] of the dtype of padded, or only an FP8 copy is "
      "wanted");
  check(is_request(args.quantize) || is_row_request(args.quantize),
        "cut_head_values: an FP8 copy needs an FP8 format and a scale");
  if (empty) return;
  OCTET_DISPATCH(stream, cut_head_values, args);
}

void pad_head_values(Stream& stream, const PadHeadValuesArgs& args) {
  check_latent_heads(args.heads);
  check(is_matrix(args.d_out) && args.d_out.cols == args.heads.values() &&
            is_of(args.d_padded, args.d_out.dtype, args.d_out.rows, args.heads.keys()),
        "pad_head_values: d_out must be [tokens, heads.values()], and d_padded [tokens, heads.keys()] of its "
        "dtype");
  if (args.d_out.rows == 0) return;
  OCTET_DISPATCH(stream, pad_head_values, args);
}

}  // namespace octet::ops
