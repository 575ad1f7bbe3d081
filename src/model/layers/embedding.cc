#include "layers/embedding.h"

#include "layers/head.h"
#include "octet/ops/embedding.h"

namespace octet::model {

// A tied table is also the head's weight. The head's backward runs first, so its wgrad GEMM may overwrite the
// gradient before the embedding adds to it.
Embedding::Embedding(GroupBuilder& group, const Architecture& a)
    : table_(group.matrix("embed", a.hidden, {{"embed_tokens.weight", a.vocabulary, kVocabulary}},
                          {.init_std = a.tied ? head_deviation(a) : a.embedding_initializer_range,
                           .gradient_by_gemm = a.tied})),
      scale_(a.embedding_scale),
      padding_id_(a.padding_id),
      sums_(a.share.sums()) {}

std::size_t Embedding::workspace(const Device& device, const Common& common) const {
  return ops::embedding_backward_workspace(device, common.options.max_tokens, table_.rows());
}

std::vector<Operation> Embedding::operations(std::int64_t tokens) const {
  const double values = 2 * static_cast<double>(tokens) * static_cast<double>(table_.cols());
  std::vector<Operation> all = {moves(OperationKind::embedding, values)};
  if (trained()) all.push_back(moves_back(OperationKind::embedding, values));
  return all;
}

float Embedding::scale(const Common& common) const {
  const auto scale = static_cast<float>(scale_);
  return common.dtype == DType::bf16 ? from_bf16(to_bf16(scale)) : scale;
}

void Embedding::forward(const Call& call, const std::int32_t* ids, const ops::Matrix& out) const {
  const ops::Operand& table = table_.in(call.parameters).front();
  ops::embedding(call.stream, {.ids = ids,
                               .table = {table.data, table.dtype, table.rows, table.cols, table.cols},
                               .scale = scale(call.common),
                               .out = out});
  if (sums_) reduce_partial(call, "embedding", out);
}

void Embedding::backward(const Call& call, const std::int32_t* ids, const ops::ConstMatrix& d_out) const {
  const ops::Matrix& d_table = table_.in(*call.gradients);
  if (d_table.data == nullptr) return;
  ops::embedding_backward(call.stream, {.ids = ids,
                                        .d_out = d_out,
                                        .scale = scale(call.common),
                                        .d_table = d_table,
                                        .padding_id = padding_id_,
                                        .workspace = call.common.scratch.workspace});
}

}  // namespace octet::model
