#pragma once

#include <cstdint>

#include "octet/data/encoded.h"

namespace octet::data {

// LLaMA-Factory's packing, for runs that must reproduce its sequences. The default packing is pack_best_fit
// (encoded.h). It uses the whole set, so it fills sequences better, and it never lets documents attend to
// each other.

struct KnapsackOptions {
  std::int64_t capacity = 0;       ///< tokens of a sequence: cutoff_len - 1
  std::int64_t batch_rows = 1000;  ///< rows that are packed together (preprocessing_batch_size)
  bool shared_context = false;     ///< documents of a sequence attend to each other (without neat_packing)
};

/// Packs each batch of rows greedily: the longest document that fits goes first. If
/// documents have the same length, the last goes first. Documents longer than the capacity are left out.
Items pack_knapsack(const Encoded& set, const KnapsackOptions& options);

struct BlockOptions {
  std::int64_t length = 0;         ///< tokens of a block: cutoff_len
  std::int64_t batch_rows = 1000;  ///< rows that are chained before they are cut
  std::int32_t first_token = -1;   ///< overwrites the first token of each block; -1: none
};

/// Concatenates texts and cuts them into blocks. All tokens are trained, and texts of a block attend to each
/// other. Tokens at the end of a batch of rows that do not fill a block are left out. A block has the row
/// number of its first token.
Encoded cut_blocks(const Encoded& set, const BlockOptions& options);

}  // namespace octet::data
