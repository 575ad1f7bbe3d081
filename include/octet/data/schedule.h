#pragma once

#include <cstdint>

namespace octet::data {

/// Which items an optimizer step trains, by arithmetic from (seed, step): any rank can be at any step, and
/// the world size does not change the data. An epoch visits every item once in an order of its own; its last
/// step takes what is left.
struct SampleOrder {
  std::int64_t items = 0;
  std::int64_t global_batch = 1;  ///< items of a full step, over all ranks and micro-batches
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool drop_last = false;  ///< leave out an epoch's last, partial step

  std::int64_t steps_per_epoch() const;
  /// Item at `place` (0 … global_batch - 1) of step `step` (from 0), or -1 where a partial step has none.
  std::int64_t item(std::int64_t step, std::int64_t place) const;
};

/// How a step's places are dealt: rank r takes a contiguous run, micro-batch after micro-batch.
struct Deal {
  std::int64_t micro = 1;         ///< items of a micro-batch
  std::int64_t accumulation = 1;  ///< micro-batches of a rank
  int rank = 0;
  int world = 1;
  std::int64_t first_place(std::int64_t micro_batch) const {
    return (static_cast<std::int64_t>(rank) * accumulation + micro_batch) * micro;
  }
};

}  // namespace octet::data
