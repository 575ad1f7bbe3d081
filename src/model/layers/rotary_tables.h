#pragma once

#include <cstdint>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Cosines and sines of the angles of a rotary embedding, f32 [positions, head_dim / 2].
struct RotaryTable {
  struct Angles {
    const float* cosine = nullptr;
    const float* sine = nullptr;
  };
  const float* cosine = nullptr;
  const float* sine = nullptr;
  Angles queries = {};         ///< multiplied for queries (Rope::query_beta); null: as for keys
  Angles long_documents = {};  ///< of documents with more than `longest_short` tokens; null: as for others
  std::int64_t longest_short = 0;
  /// Whether all heads of all documents have the same angles.
  bool uniform() const { return queries.cosine == nullptr && long_documents.cosine == nullptr; }
};

/// Computes the tables of an architecture's rotary embeddings for `positions` positions. A last table rotates
/// nothing, if norms of heads without a rotation need it.
std::vector<RotaryTable> make_rotary_tables(Arena& arena, const Architecture& architecture,
                                            std::int64_t positions);

}  // namespace octet::model
