// The last norm, the head and the loss: logits exist for one chunk of label rows at a time, and their
// gradient takes their place.
#include <algorithm>

#include "core.h"
#include "octet/base/error.h"
#include "octet/ops/cross_entropy.h"
#include "octet/ops/embedding.h"
#include "octet/ops/rms_norm.h"

namespace octet::model {

const ops::Operand& Transformer::Impl::head_weight(const GroupParameters& head,
                                                   const GroupParameters* embedding) const {
  return architecture_.tied ? embedding->weights[0][0] : head.weights[0][0];
}

void Transformer::Impl::final_norm(Stream& stream, const GroupParameters& head, std::int64_t tokens) {
  const NormInput input = norm_input(top(blocks_.back().middle, tokens), top(scratch_.final_stream, tokens));
  ops::rms_norm(stream, {.residual = input.residual,
                         .delta = input.delta,
                         .sum = input.sum,
                         .weight = static_cast<const float*>(head.weights.back()[0].data),
                         .eps = static_cast<float>(architecture_.norm_eps),
                         .one_plus_weight = architecture_.one_plus_weight,
                         .out = top(scratch_.final_norm, tokens),
                         .rstd = scratch_.final_rstd});
}

void Transformer::Impl::forward_head(ParameterSource& source, Stream& stream, const MicroBatch& batch,
                                     bool training, double* loss_sum, const LogitsHook& hook,
                                     const PassOptions& pass) {
  const ProfileLabel label(stream, "head");
  const int head_group = layout_.head_group(), table_group = layout_.embedding_group();
  const bool tied = architecture_.tied;
  const std::int64_t tokens = batch.documents.tokens;
  const GroupParameters& head = source.acquire(head_group, Pass::forward, stream);
  const GroupParameters* table = tied ? &source.acquire(table_group, Pass::forward, stream) : nullptr;
  const ops::Operand& weight = head_weight(head, table);
  const GroupGradients* head_gradients = training ? &source.gradients(head_group, stream) : nullptr;
  const GroupGradients* weight_gradients =
      training ? (tied ? &source.gradients(table_group, stream) : head_gradients) : nullptr;

  final_norm(stream, head, tokens);
  const ops::Matrix hidden = top(scratch_.label_hidden, batch.labels);
  ops::gather_rows(stream, top(scratch_.final_norm, tokens), batch.label_rows, hidden);
  const auto cap = static_cast<float>(architecture_.logit_soft_cap);
  const std::size_t row_bytes = static_cast<std::size_t>(architecture_.hidden) * size_of(dtype_);
  // At least one round, so that without labels the gradient of the head still becomes zero.
  for (std::int64_t first = 0; first == 0 || first < batch.labels; first += chunk_) {
    const std::int64_t rows = std::min(chunk_, batch.labels - first);
    ops::Matrix part = top(hidden, rows);
    part.data = static_cast<std::byte*>(hidden.data) + static_cast<std::size_t>(first) * row_bytes;
    const ops::Operand x{.data = part.data, .dtype = dtype_, .rows = rows, .cols = part.cols};
    const ops::Matrix logits = top(scratch_.logits, rows);
    product(stream, ops::Product::forward, x, weight, logits);
    if (hook && rows > 0) {
      if (cap > 0) ops::soft_cap(stream, logits, cap);
      hook(stream, logits, first);
      // The loss and its gradient need the logits as they were, to the last bit.
      if (cap > 0) product(stream, ops::Product::forward, x, weight, logits);
    }
    ops::cross_entropy(stream, {.logits = logits,
                                .targets = batch.targets + first,
                                .soft_cap = cap,
                                .gradient = training,
                                .row_loss = scratch_.row_loss});
    ops::add_sum(stream, scratch_.row_loss, rows, loss_sum);
    if (!training) continue;
    const ops::Operand d_logits{.data = logits.data, .dtype = dtype_, .rows = rows, .cols = logits.cols};
    const ops::Matrix& d_weight = weight_gradients->gradients[0][0];
    if (d_weight.data != nullptr) {
      product(stream, ops::Product::wgrad, d_logits, x, d_weight, !weight_gradients->overwrite || first > 0);
    }
    product(stream, ops::Product::dgrad, d_logits, weight, part);
  }
  if (training) {
    const ops::Matrix d_norm = top(scratch_.final_norm, tokens);
    ops::scatter_rows(stream, hidden, batch.label_rows, d_norm);
    const std::int64_t last = static_cast<std::int64_t>(blocks_.size()) - 1;
    backward_norm(stream, {.dy = d_norm,
                           .x = top(scratch_.final_stream, tokens),
                           .rstd = scratch_.final_rstd,
                           .weight = static_cast<const float*>(head.weights.back()[0].data),
                           .d_weight = static_cast<float*>(head_gradients->gradients.back()[0].data),
                           .dx = top(scratch_.gradient, tokens),
                           .accumulate = false,
                           .into = fuse_stream_gradient(last, kDown, pass)});
    source.give_back(head_group, stream);
  }
  if (tied) source.release(table_group, Pass::forward, stream);
  source.release(head_group, Pass::forward, stream);
}

}  // namespace octet::model
