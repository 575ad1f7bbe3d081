// Shared code of forward and backward attention on the CPU. Work is divided into blocks of 64 queries by 64
// keys of one document and head. Scores are stored transposed, [keys][queries], so that the softmax runs over
// rows of vectors: every lane is a query, and no reduction crosses lanes. Blocks above the diagonal and
// outside of the window are skipped. Inside the diagonal block, pieces of 8 keys start at their first query.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "octet/ops/attention.h"

namespace octet::ops::cpu {

constexpr std::int64_t block = 64;  ///< queries and keys of a block

constexpr std::int64_t round_up(std::int64_t n, std::int64_t to) {
  return (n + to - 1) / to * to;
}

/// Returns the head size, rounded up for the tiles.
inline std::int64_t padded_head(const Heads& heads) {
  return round_up(heads.head_dim, 16);
}

/// Scores of 64 keys and 64 queries, starting at `key` and `query` (both relative to the document's start).
struct ScoreBlock {
  std::int64_t query = 0;
  std::int64_t key = 0;
  std::int64_t window = 0;  ///< 0: none
  float soft_cap = 0.0f;
  /// Returns true if some pair of the block is masked.
  bool masked() const { return key == query || (window > 0 && query + block - 1 - key >= window); }
};

/// Returns the first key block that queries starting at `query` see.
inline std::int64_t first_key_block(std::int64_t query, std::int64_t window) {
  if (window == 0 || query < window) return 0;
  return (query - window + 1) / block * block;
}

/// Converts rows x head_dim values of T (stride ld) to f32 rows of `padded` values. Rows up to `total` and
/// columns up to `padded` are set to zero.
template <typename T>
void pack_rows(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t head_dim, float* to,
               std::int64_t padded, std::int64_t total);
/// [64][padded] -> [padded][64], times `factor`.
void transpose_block(const float* from, std::int64_t padded, float factor, float* to);
/// scores[key][query] = K · Qᵀ for the visible part of a block: keys [64][padded], queries [padded][64].
/// Applies the soft cap, if there is one.
void block_scores(const ScoreBlock& at, const float* keys, const float* queries, std::int64_t head_dim,
                  std::int64_t padded, float* scores);
/// Returns the first query (a multiple of 16) of a block that sees any of the 8 keys starting at `key`
/// (0..63).
inline std::int64_t first_query(const ScoreBlock& at, std::int64_t key) {
  return at.key == at.query ? key / 16 * 16 : 0;
}

/// scores[i] = cap * tanh(scores[i] / cap) for i in [from, to).
void cap_scores(float* scores, std::int64_t from, std::int64_t to, float cap);

/// out[query][padded] += X · rows. X[query][key] is stored transposed, like scores. For products of weights
/// with values, and of score gradients with keys.
void add_weighted_rows(const ScoreBlock& at, const float* transposed, const float* rows, std::int64_t padded,
                       float* out);
/// out[key][padded] += Xᵀ · rows: sums over queries.
void add_transposed_rows(const ScoreBlock& at, const float* transposed, const float* rows,
                         std::int64_t padded, float* out);

/// Checks cu_seqlens against tokens and max_length.
void check_lengths(const Documents& documents);

/// Returns the number of threads that fit into a workspace of `each` bytes per thread.
int workspace_threads(const Workspace& workspace, std::size_t each);
std::size_t forward_scratch_bytes(const Heads& heads, std::int64_t max_length);
std::size_t backward_scratch_bytes(const Heads& heads, std::int64_t max_length);

}  // namespace octet::ops::cpu
