// Checks shared by the ops of a gated delta rule.
#pragma once

#include "checks.h"
#include "octet/ops/delta_inputs.h"

namespace octet::ops {

inline bool are_delta_heads(const DeltaHeads& heads) {
  const auto is_dim = [](std::int64_t dim) { return dim > 0 && dim <= kMostDeltaDim && dim % 8 == 0; };
  return heads.key_heads > 0 && heads.value_heads > 0 && heads.value_heads % heads.key_heads == 0 &&
         is_dim(heads.key_dim) && is_dim(heads.value_dim);
}

inline bool are_delta_columns(const DeltaColumns& columns) {
  return are_delta_heads(columns.heads) && columns.groups > 0 &&
         columns.heads.key_heads % columns.groups == 0;
}

/// Returns whether the documents describe `tokens` tokens.
inline bool are_documents(const Documents& documents, std::int64_t tokens) {
  return documents.count >= 0 && documents.tokens == tokens &&
         (documents.count == 0 || documents.cu_seqlens != nullptr);
}

}  // namespace octet::ops
