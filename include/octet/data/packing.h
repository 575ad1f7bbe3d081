#pragma once

#include <cstdint>

#include "octet/data/encoded.h"

namespace octet::data {

// Packing as LLaMA-Factory does it, for runs that must reproduce its sequences. Our own packing is
// pack_best_fit (encoded.h): it sees the whole set, so it fills sequences better, and it never joins
// documents.

struct KnapsackOptions {
  std::int64_t capacity = 0;       ///< tokens of a sequence: cutoff_len - 1
  std::int64_t batch_rows = 1000;  ///< rows that are packed together (preprocessing_batch_size)
  bool shared_context = false;     ///< documents of a sequence see each other: packing without neat_packing
};

/// Row batch by row batch, the largest document that fits goes first; of equally long ones the last.
/// Documents longer than the capacity are left out.
Items pack_knapsack(const Encoded& set, const KnapsackOptions& options);

struct BlockOptions {
  std::int64_t length = 0;         ///< tokens of a block: cutoff_len
  std::int64_t batch_rows = 1000;  ///< rows that are chained before they are cut
  std::int32_t first_token = -1;   ///< overwrites the first token of each block; -1: none
};

/// Texts one behind the other, cut into blocks; all is trained and texts of a block see each other. What does
/// not fill a block at the end of a batch of rows is left out. A block's row is that of its first token.
Encoded cut_blocks(const Encoded& set, const BlockOptions& options);

}  // namespace octet::data
