// The sums of a block of 64 queries over the keys that they see, in tiles of 64 keys with a running maximum
// and sum (Dao et al. 2022, arXiv:2205.14135). Queries and keys are counted from the start of their document,
// and each query is a lane of its own: its bits depend on its place in the document, its keys and values
// alone. So attention of training and that of decoding in a fixed order are one function.
#pragma once

#include "cpu/attention_tiles.h"

namespace octet::ops::cpu {

/// Lanes that are computed at once where a block is not: a divisor of 64.
constexpr std::int64_t lane_group = 16;

/// Running state of 64 queries.
struct Running {
  float* maximum;
  float* sum;
  float* factor;  ///< what older results are multiplied by
};

/// A block of queries of one head, and what it sees.
struct QueryBlock {
  const float* keys = nullptr;    ///< [keys][padded] from key `from` on, up to the end of the queries' block
  const float* values = nullptr;  ///< likewise; finite, what nobody sees too
  std::int64_t from = 0;          ///< a multiple of 64, at most first_key_block(query, window)
  std::int64_t query = 0;         ///< the first query, a multiple of 64
  std::int64_t window = 0;
  float soft_cap = 0.0f;
  std::int64_t head_dim = 0, padded = 0;
  const float* queries = nullptr;  ///< [padded][64], times the scale
  float* scores = nullptr;         ///< [64][64]: scratch
  float* out = nullptr;            ///< [64][padded]: sums of values, to be divided by state.sum
  Running state;                   ///< [64] each, written
};

/// One thread's scratch memory: forward_scratch_bytes of it.
struct AttendScratch {
  float *keys, *values;  ///< [keys][padded]
  float *rows, *queries, *out, *scores;
  Running state;
};
/// Lays it out. `keys`: a multiple of 64.
AttendScratch attend_scratch(void* memory, std::int64_t padded, std::int64_t keys);

/// All 64 queries.
void attend_rows(const QueryBlock& block);
/// Queries [lane, lane + lane_group) of the block, `lane` a multiple of lane_group: the same bits. The rest
/// of `out` and `state` stays.
void attend_lanes(const QueryBlock& block, std::int64_t lane);

}  // namespace octet::ops::cpu
