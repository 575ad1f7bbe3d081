#pragma once

#include "octet/ops/types.h"

namespace octet::ops {

/// out[t] = scale * table[ids[t]]. An id outside the table gives zeros; callers check ids before.
struct EmbeddingArgs {
  const std::int32_t* ids = nullptr;  ///< [tokens]
  ConstMatrix table;                  ///< [vocabulary, hidden] T
  float scale = 1.0f;
  Matrix out;  ///< [tokens, hidden] T
};
void embedding(Stream& stream, const EmbeddingArgs& args);

/// d_table[id] += scale * Σ d_out over tokens with that id, in token order. Summed in fp32 and rounded once.
struct EmbeddingBackwardArgs {
  const std::int32_t* ids = nullptr;
  ConstMatrix d_out;  ///< [tokens, hidden] T
  float scale = 1.0f;
  Matrix d_table;                ///< [vocabulary, hidden] f32 or bf16
  std::int32_t padding_id = -1;  ///< tokens with this id add nothing; -1: all add
  Workspace workspace;
};
void embedding_backward(Stream& stream, const EmbeddingBackwardArgs& args);
std::size_t embedding_backward_workspace(const Device& device, std::int64_t tokens, std::int64_t vocabulary);

/// out[i] = x[rows[i]]. Copies bits of f32, bf16 or FP8. All rows[i] are rows of x.
void gather_rows(Stream& stream, ConstMatrix x, const std::int32_t* rows, Matrix out);
/// Backward of gather_rows(): x = 0, then x[rows[i]] = in[i]. Rows are distinct, except for rows below 0,
/// which are left out.
void scatter_rows(Stream& stream, ConstMatrix in, const std::int32_t* rows, Matrix x);

/// d_bias[c] += Σ_rows dy[r, c], with rows in a fixed order.
void bias_backward(Stream& stream, ConstMatrix dy, float* d_bias);

}  // namespace octet::ops
