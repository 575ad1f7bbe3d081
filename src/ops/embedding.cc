#include "octet/ops/embedding.h"

#include <limits>

#include "checks.h"
#include "dispatch.h"
#include "kernels.h"

namespace octet::ops {

void embedding(Stream& stream, const EmbeddingArgs& args) {
  check(is_matrix(args.table), "embedding: table must be [vocabulary, hidden] T");
  check(is_matrix(args.out) && args.out.dtype == args.table.dtype && args.out.cols == args.table.cols,
        "embedding: out must be [tokens, hidden] of the table's dtype");
  check(args.out.rows == 0 || args.ids, "embedding: ids are missing");
  OCTET_DISPATCH(stream, embedding, args);
}

std::size_t embedding_backward_workspace(const Device&, std::int64_t tokens, std::int64_t vocabulary) {
  return static_cast<std::size_t>(tokens + vocabulary) * sizeof(std::int32_t);
}

void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args) {
  check(is_matrix(args.d_out), "embedding_backward: d_out must be [tokens, hidden] T");
  check(is_matrix(args.d_table) && args.d_table.cols == args.d_out.cols,
        "embedding_backward: d_table must be [vocabulary, hidden] f32 or bf16");
  check(args.d_out.rows <= std::numeric_limits<std::int32_t>::max(),
        "embedding_backward: tokens must be counted in 32 bits");
  check(args.d_out.rows == 0 || args.ids, "embedding_backward: ids are missing");
  check(args.d_out.rows == 0 ||
            (args.workspace.data &&
             args.workspace.bytes >=
                 embedding_backward_workspace(stream.device(), args.d_out.rows, args.d_table.rows)),
        "embedding_backward: the workspace is smaller than embedding_backward_workspace says");
  OCTET_DISPATCH(stream, embedding_backward, args);
}

void gather_rows(Stream& stream, ConstMatrix x, const std::int32_t* rows, Matrix out) {
  const bool there = out.rows == 0 || (x.data != nullptr && out.data != nullptr);
  const bool fp8 = is_fp8(x.dtype) && there && x.ld >= x.cols;
  check((fp8 || (is_matrix(x) && is_matrix(out))) && out.dtype == x.dtype && out.cols == x.cols,
        "gather_rows: out must have the columns and dtype of x");
  check(out.rows == 0 || rows, "gather_rows: rows are missing");
  const GatherRowsArgs args{x, rows, out};
  OCTET_DISPATCH(stream, gather_rows, args);
}

void scatter_rows(Stream& stream, ConstMatrix in, const std::int32_t* rows, Matrix x) {
  check(is_matrix(in) && is_matrix(x) && in.dtype == x.dtype && in.cols == x.cols && in.rows <= x.rows,
        "scatter_rows: in must have the columns and dtype of x, and no more rows");
  check(in.rows == 0 || rows, "scatter_rows: rows are missing");
  const ScatterRowsArgs args{in, rows, x};
  OCTET_DISPATCH(stream, scatter_rows, args);
}

void bias_backward(Stream& stream, ConstMatrix dy, float* d_bias) {
  check(is_matrix(dy), "bias_backward: dy must be [rows, cols] T");
  check(dy.rows * dy.cols == 0 || d_bias, "bias_backward: d_bias is missing");
  const BiasBackwardArgs args{dy, d_bias};
  OCTET_DISPATCH(stream, bias_backward, args);
}

}  // namespace octet::ops
