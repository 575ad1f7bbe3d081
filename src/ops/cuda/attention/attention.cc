// Attention on CUDA: cuDNN if it supports the call, otherwise our own kernels.
#include "octet/ops/attention.h"

#include <algorithm>
#include <string>

#include "cuda/attention/attention_kernels.h"
#include "cuda/attention/cudnn.h"
#include "cuda/scratch.h"
#include "octet/base/error.h"
#include "octet/device/cuda.h"

namespace octet::ops::cuda {

void attention(Stream& stream, const AttentionArgs& args);
void attention_backward(Stream& stream, const AttentionBackwardArgs& args);
void cached_attention(Stream& stream, const CachedAttentionArgs& args);

void attention(Stream& stream, const AttentionArgs& args) {
  check_head_dim(args.heads);
  cudaStream_t native = octet::cuda::native(stream);
  if (args.fixed_order) {
    check(args.workspace.bytes >= attention_in_order_workspace(args.qkv.rows),
          "attention: the workspace holds attention_workspace bytes");
    return own_attention_in_order(native, args);
  }
  if (cudnn_attention(native, octet::cuda::properties(stream.device()).ordinal, args)) return;
  own_attention(native, args);
}

void attention_backward(Stream& stream, const AttentionBackwardArgs& args) {
  check_head_dim(args.heads);
  check(args.workspace.bytes >= delta_bytes(args.heads, args.qkv.rows),
        "attention_backward: the workspace holds attention_workspace bytes");
  cudaStream_t native = octet::cuda::native(stream);
  if (cudnn_attention_backward(native, octet::cuda::properties(stream.device()).ordinal, args,
                               stream.reproducible())) {
    return;
  }
  own_attention_backward(native, args, static_cast<float*>(args.workspace.data));
}

void cached_attention(Stream& stream, const CachedAttentionArgs& args) {
  check_head_dim(args.heads);
  own_cached_attention(octet::cuda::native(stream), args);
}

}  // namespace octet::ops::cuda
