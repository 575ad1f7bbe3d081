#pragma once

#include <cstdint>

#include "octet/base/error.h"

namespace octet::feed {

/// A place in the items, independent of the size of a step: the number of finished epochs and items.
struct SamplePlace {
  std::int64_t epoch = 0;
  std::int64_t item = 0;  ///< of the epoch, in the order in which it is trained
  bool operator==(const SamplePlace&) const = default;
};

/// Computes the items of an optimizer step from (seed, step): any rank can be at any step, and the world size
/// does not change the data. An epoch visits every item once, in a different order each time. Its last step
/// takes the rest, with any number of micro-batches.
///
/// A run may resume with steps of another size: go_on() sets the place, and later steps are counted from
/// there.
struct SampleOrder {
  std::int64_t items = 0;
  std::int64_t global_batch = 1;  ///< items of a full step, over all ranks and micro-batches
  std::uint64_t seed = 0;
  bool shuffle = true;
  /// Above 1, an epoch leaves out its last items that do not fill such a group (dataloader_drop_last: a
  /// micro-batch of every rank). A last step of fewer groups than others is trained.
  std::int64_t whole_groups_of = 1;

  /// Where step `first_step` begins, and in which epoch; go_on() sets both.
  SamplePlace first;
  std::int64_t first_step = 0;

  /// Makes step `step` start at `place`, or at the next epoch if the epoch of `place` has no item left.
  void go_on(std::int64_t step, SamplePlace place);

  /// Items that an epoch trains: 0 when they do not fill one group.
  std::int64_t items_per_epoch() const;
  /// At least 1.
  std::int64_t steps_per_epoch() const;
  /// Where step `step` begins, which is not before `first_step`: at an epoch's end, item 0 of the next.
  SamplePlace place(std::int64_t step) const;
  /// The number of steps that reach the place where `steps` steps of this size from the start would end:
  /// `steps` itself if no step had another size, and `first_step` if the place is already passed.
  std::int64_t steps_until_end_of(std::int64_t steps) const;
  /// The `nth` item (0 … global_batch - 1) of step `step` (from 0), or -1 where a partial step has none.
  std::int64_t item(std::int64_t step, std::int64_t nth) const;

 private:
  std::int64_t last_item(std::int64_t epoch) const;
  std::int64_t steps_of_first_epoch() const;
};

/// The Error (usage) for an epoch with too few items for one group of `whole_groups_of`.
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
