// The sums of a block of 64 queries over their visible keys, in tiles of 64 keys with a running maximum and
// sum (Dao et al. 2022, arXiv:2205.14135). Queries and keys are counted from the start of their document.
// Each query is one lane: its bits depend only on its place in the document and on its keys and values.
// Training and fixed-order decoding can therefore share one function.
#pragma once

#include "cpu/attention_tiles.h"

namespace octet::ops::cpu {

/// Lanes that are computed together if not a whole block is: a divisor of 64.
constexpr std::int64_t lane_group = 16;

/// Running state of 64 queries.
struct Running {
  float* maximum;
  float* sum;
  float* factor;  ///< factor for older results
};

/// A block of queries of one head, and its keys and values.
struct QueryBlock {
  const float* keys = nullptr;  ///< [keys][padded], starts at key `from`, up to the end of the queries' block
  const float* values = nullptr;  ///< like keys; must be finite even if no query sees them
  std::int64_t from = 0;          ///< a multiple of 64, at most first_key_block(query, window)
  std::int64_t query = 0;         ///< the first query, a multiple of 64
  std::int64_t window = 0;
  float soft_cap = 0.0f;
  std::int64_t head_dim = 0, padded = 0;
  const float* queries = nullptr;  ///< [padded][64], times the scale
  float* scores = nullptr;         ///< [64][64]: scratch
  float* out = nullptr;            ///< [64][padded]: sums of values, not yet divided by state.sum
  Running state;                   ///< [64] each, written
};

/// One thread's scratch memory of forward_scratch_bytes.
struct AttendScratch {
  float *keys, *values;  ///< [keys][padded]
  float *rows, *queries, *out, *scores;
  Running state;
};
/// Divides `memory` into the arrays. `keys`: a multiple of 64.
AttendScratch attend_scratch(void* memory, std::int64_t padded, std::int64_t keys);

/// Computes all 64 queries.
void attend_rows(const QueryBlock& block);
/// Computes queries [lane, lane + lane_group) of the block with the same bits as attend_rows. `lane` is a
/// multiple of lane_group. The rest of `out` and `state` is unchanged.
void attend_lanes(const QueryBlock& block, std::int64_t lane);

}  // namespace octet::ops::cpu
