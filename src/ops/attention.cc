#include "octet/ops/attention.h"

#include <algorithm>

#include "cuda/scratch.h"
#include "dispatch.h"

namespace octet::ops {

namespace cpu {
void attention(const AttentionArgs& args);
void attention_backward(const AttentionBackwardArgs& args);
void cached_attention(const CachedAttentionArgs& args);
std::size_t attention_workspace(const Heads& heads, std::int64_t max_length);
std::size_t cached_attention_workspace(const Heads& heads, std::int64_t capacity);
}  // namespace cpu
namespace cuda {
void attention(Stream& stream, const AttentionArgs& args);
void attention_backward(Stream& stream, const AttentionBackwardArgs& args);
void cached_attention(Stream& stream, const CachedAttentionArgs& args);
}  // namespace cuda

namespace {

void check_heads(const Heads& heads) {
  check(heads.head_dim > 0 && heads.kv_heads > 0 && heads.q_heads > 0 && heads.q_heads % heads.kv_heads == 0,
        "attention: there are heads, and every KV head serves equally many query heads");
}

/// A [tokens, width] array of the compute dtype.
void check_matrix(const ConstMatrix& x, DType dtype, std::int64_t rows, std::int64_t cols) {
  check(x.dtype == dtype && x.rows == rows && x.cols == cols && x.ld >= cols,
        "attention: all arrays have the compute dtype and the shapes of the contract");
  check(rows == 0 || x.data != nullptr, "attention: arrays have data");
}

void check_common(const ConstMatrix& qkv, const Heads& heads, float scale, float soft_cap,
                  std::int64_t window) {
  check_heads(heads);
  check(qkv.dtype == DType::f32 || qkv.dtype == DType::bf16, "attention: qkv is f32 or bf16");
  check_matrix(qkv, qkv.dtype, qkv.rows, heads.qkv_width());
  check(scale == scale && soft_cap >= 0.0f && window >= 0,
        "attention: scale is a number, soft cap and window are not negative");
}

void check_documents(const Documents& documents, std::int64_t tokens) {
  check(documents.count >= 0 && documents.tokens == tokens && documents.max_length >= 0 &&
            (documents.count == 0 || documents.cu_seqlens != nullptr),
        "attention: the documents describe the tokens of qkv");
}

}  // namespace

void attention(Stream& stream, const AttentionArgs& args) {
  check_common(args.qkv, args.heads, args.scale, args.soft_cap, args.window);
  check_documents(args.documents, args.qkv.rows);
  check_matrix(args.out, args.qkv.dtype, args.qkv.rows, args.heads.q_heads * args.heads.head_dim);
  if (args.qkv.rows == 0) return;
  OCTET_DISPATCH(stream, attention, args);
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  check_common(args.qkv, args.heads, args.scale, args.soft_cap, args.window);
  check_documents(args.documents, args.qkv.rows);
  const std::int64_t width = args.heads.q_heads * args.heads.head_dim;
  check_matrix(args.out, args.qkv.dtype, args.qkv.rows, width);
  check_matrix(args.d_out, args.qkv.dtype, args.qkv.rows, width);
  check_matrix(args.d_qkv, args.qkv.dtype, args.qkv.rows, args.heads.qkv_width());
  if (args.qkv.rows == 0) return;
  check(args.lse != nullptr, "attention: backward needs the lse of forward");
  OCTET_DISPATCH(stream, attention_backward, args);
}

void cached_attention(Stream& stream, const CachedAttentionArgs& args) {
  check_common(args.qkv, args.heads, args.scale, args.soft_cap, args.window);
  check_matrix(args.out, args.qkv.dtype, args.qkv.rows, args.heads.q_heads * args.heads.head_dim);
  if (args.qkv.rows == 0) return;
  check(args.slots != nullptr && args.positions != nullptr && args.k_cache != nullptr &&
            args.v_cache != nullptr && args.capacity > 0,
        "attention: there is a cache, and every token has a place in it");
  check((args.k_scale_inv == nullptr) == (args.v_scale_inv == nullptr),
        "attention: keys and values of a cache have one format");
  check(!args.fixed_order || args.k_scale_inv == nullptr,
        "attention: keys and values that E4M3 rounded are not those of training");
  check(args.alone >= 0 && args.alone <= args.qkv.rows,
        "attention: there are at most as many single-token sequences as tokens");
  const CachePages& pages = args.pages;
  check(pages.table == nullptr || (pages.tokens > 0 && (pages.tokens & (pages.tokens - 1)) == 0 &&
                                   pages.pitch * pages.tokens >= args.capacity),
        "attention: pages hold a power of two of tokens, and a sequence has as many as it may need");
  OCTET_DISPATCH(stream, cached_attention, args);
}

std::size_t attention_workspace(const Device& device, const Heads& heads, DType dtype, std::int64_t tokens,
                                std::int64_t max_length, bool fixed_order) {
  check_heads(heads);
  check(tokens >= 0 && max_length >= 0, "attention: there are no negative lengths");
  const auto here = [&] {
    return cpu::attention_workspace(heads, max_length < tokens ? max_length : tokens);
  };
  if (device.stands_for() != DeviceKind::cuda) return here();
  cuda::check_head_dim(heads);
  std::size_t there = cuda::attention_workspace(heads, dtype, tokens);
  if (fixed_order) there = std::max(there, cuda::attention_in_order_workspace(tokens));
  return device.kind() == DeviceKind::cpu ? std::max(there, here()) : there;
}

std::size_t cached_attention_workspace(const Device& device, const Heads& heads, std::int64_t tokens,
                                       std::int64_t capacity, bool fixed_order) {
  check_heads(heads);
  check(tokens >= 0 && capacity > 0, "attention: there are tokens, and a cache");
  const std::size_t here = fixed_order ? cpu::cached_attention_workspace(heads, capacity) : 0;
  if (device.stands_for() != DeviceKind::cuda) return here;
  cuda::check_head_dim(heads);
  const std::size_t there = fixed_order ? 0 : cuda::cached_attention_workspace(heads, tokens, capacity);
  return device.kind() == DeviceKind::cpu ? std::max(there, here) : there;
}

}  // namespace octet::ops
