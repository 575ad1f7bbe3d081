#pragma once

#include <memory>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/precision/scaling.h"
#include "octet/store/store.h"
#include "segments.h"

namespace octet::store {

/// Makes whole compute copies of shards, before they are used. With cut parameters a group's copy lives in a
/// buffer shared with others and is gathered whenever it is not there; otherwise it stays where it is and is
/// gathered once after each change. Without cut state there is nothing to gather. What is not trained changes
/// never: with cut parameters it is gathered when it is not there. What lies in NF4 is decoded where a group
/// is acquired, on the stream that uses it, into a buffer that blocks share: of the block before, too, when
/// that is what lies there still.
///
/// All ranks make the same calls in the same order, so that their collectives match. What is gathered ahead
/// depends on the order of calls alone.
class Gatherer {
 public:
  /// `fixed_scales`: of FP8 weights that are not trained; may be null, and outlives the gatherer.
  Gatherer(Segments& segments, const precision::ScaleSet* fixed_scales, comm::Collectives& collectives,
           Device& device, const Options& options);

  /// The copy of `group` is whole for work enqueued on `compute` after this call, until release.
  void acquire(int group, model::Pass pass, Stream& compute);
  void release(int group, Stream& compute);
  /// What acquire enqueues on `compute` besides gathers, for copies as they lie.
  void rehearse(int group, model::Pass pass, Stream& compute);

  /// Work enqueued on `compute` after this call may write shards.
  void before_change(Stream& compute);
  /// The trained shards of `group` were written by work enqueued on `stream`; nobody holds it.
  void changed(int group, Stream& stream);
  /// All shards were written: what is not trained, too, was loaded. Before `changed` of the groups.
  void loaded();
  /// The same, and starts its gather where that need not wait for a use. Ranks change groups in one order.
  void changed_and_ready(int group, Stream& compute);
  /// Makes the transposed copies of a segment whose copy is whole.
  static void transpose(const Segment& segment, Stream& stream);
  /// A forward pass is about to begin.
  void ahead(Stream& compute);

 private:
  struct Group {
    bool whole = false;  ///< gathered since the last change, and still in its buffer
    bool fixed = false;  ///< what is not trained is still in its buffer
    bool trains = false;
    int holds = 0;
    std::unique_ptr<Event> changed;
    std::unique_ptr<Event> gathered;
  };
  struct Slot {
    int occupant = -1;
    std::unique_ptr<Event> released;
  };
  /// What was made at use and lies in a slot still.
  struct AtUse {
    int occupant = -1;
    bool decoded = false;
    bool transposed = false;  ///< decoded values were, too
  };
  void make_whole(int group, model::Pass pass, Stream& compute);
  /// What is made where a group is used, of a copy that is whole: decoded values, transposed copies.
  void make_at_use(int group, model::Pass pass, Stream& compute);
  /// `transposed`: the transposed copies, too; of a segment that is in NF4 altogether.
  void decode(const Segment& segment, bool transposed, Stream& stream);
  /// What lies in the buffers that are filled at use, which are the group's from now on.
  AtUse& occupy_at_use(int group);
  Group& at(int group) { return groups_[static_cast<std::size_t>(group)]; }
  Slot& slot_of(int group);
  void gather(int group, Stream& compute);
  void gather(Segment& segment, Stream& stream);
  void gather_ahead(int group, Stream& compute);

  Segments& segments_;
  comm::Collectives& collectives_;
  Device& device_;
  Policy policy_;
  bool overlap_;
  bool by_node_;
  int lowest_ = 0;  ///< the group at which backward ends
  const precision::ScaleSet* fixed_scales_;
  bool transposed_at_use_;
  std::vector<AtUse> at_use_;
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
};

}  // namespace octet::store
