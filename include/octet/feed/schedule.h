#pragma once

#include <cstdint>

#include "octet/base/error.h"

namespace octet::feed {

/// Which items an optimizer step trains, by arithmetic from (seed, step): any rank can be at any step, and
/// the world size does not change the data. An epoch visits every item once in an order of its own; its last
/// step takes what is left, however many micro-batches that makes.
struct SampleOrder {
  std::int64_t items = 0;
  std::int64_t global_batch = 1;  ///< items of a full step, over all ranks and micro-batches
  std::uint64_t seed = 0;
  bool shuffle = true;
  /// Above 1, an epoch leaves out its last items that do not fill such a group (dataloader_drop_last: a
  /// micro-batch of every rank). A last step of fewer groups than others is trained.
  std::int64_t whole_groups_of = 1;

  /// Items that an epoch trains: 0 when they do not fill one group.
  std::int64_t items_per_epoch() const;
  /// At least 1.
  std::int64_t steps_per_epoch() const;
  /// Item at `place` (0 … global_batch - 1) of step `step` (from 0), or -1 where a partial step has none.
  std::int64_t item(std::int64_t step, std::int64_t place) const;
};

/// The Error (usage) of an epoch whose items do not fill one group of `whole_groups_of`.
Error no_whole_group(std::int64_t items, std::int64_t whole_groups_of);

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

}  // namespace octet::feed
