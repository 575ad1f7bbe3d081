#pragma once

#include <memory>
#include <vector>

#include "octet/precision/scaling.h"
#include "octet/store/store.h"
#include "segments.h"

namespace octet::store {

/// Makes whole compute copies of shards before their use. With sharded parameters, a group's copy is in a
/// buffer shared with other groups, and is gathered whenever the buffer does not hold it. Otherwise the copy
/// stays in place and is gathered once after each change. With unsharded state, nothing is gathered.
///
/// Weights that are not trained never change. If parameters are sharded, they are gathered when the buffer
/// does not hold them. NF4 weights are decoded when a group is acquired, on the stream that uses them, into a
/// buffer shared by the blocks. A repeated acquire of the same group reuses the decoded values.
///
/// All ranks must make the same calls in the same order, so that their collectives match. Gathers ahead
/// depend on the order of calls alone.
class Gatherer {
 public:
  /// `fixed_scales`: the scales of FP8 weights that are not trained. May be null, and must outlive the
  /// gatherer.
  Gatherer(Segments& segments, const precision::ScaleSet* fixed_scales, const Axes& axes, Device& device,
           const Options& options);

  /// Makes the copy of `group` whole for work enqueued on `compute` after this call, until release.
  void acquire(int group, model::Pass pass, Stream& compute);
  void release(int group, Stream& compute);
  /// Enqueues on `compute` the work of acquire except gathers, with the present contents of the copies.
  void rehearse(int group, model::Pass pass, Stream& compute);

  /// Lets work enqueued on `compute` after this call write shards.
  void before_change(Stream& compute);
  /// Reports that work enqueued on `stream` wrote the trained shards of `group`. The group must not be
  /// acquired.
  void changed(int group, Stream& stream);
  /// Reports that all shards were written, including weights that are not trained. Call it before `changed`
  /// of the groups.
  void loaded();
  /// Like changed(), and starts the gather unless parameters are sharded. All ranks must call it for the
  /// groups in the same order.
  void changed_and_ready(int group, Stream& compute);
  /// Makes the transposed copies of a segment. Its copy must be whole.
  static void transpose(const Segment& segment, Stream& stream);
  /// Starts gathers for a forward pass that is about to begin.
  void ahead(Stream& compute);

 private:
  struct Group {
    bool whole = false;  ///< gathered since the last change, and still in its buffer
    bool fixed = false;  ///< its buffer still holds the weights that are not trained
    bool trains = false;
    int holds = 0;
    std::unique_ptr<Event> changed;
    std::unique_ptr<Event> gathered;
    std::unique_ptr<Event> experts_gathered;  ///< of segments that fewer ranks share
  };
  struct Slot {
    int occupant = -1;
    std::unique_ptr<Event> released;
  };
  /// Contents of a buffer that is filled at use.
  struct AtUse {
    int occupant = -1;
    bool decoded = false;
    bool transposed = false;  ///< the decoded values were transposed too
  };
  void make_whole(int group, model::Pass pass, Stream& compute);
  /// Makes the decoded values and transposed copies of a group at its use. Its copy must be whole.
  void make_at_use(int group, model::Pass pass, Stream& compute);
  /// Decodes a segment. `transposed`: also writes the transposed copies; requires that all tensors of the
  /// segment are NF4.
  void decode(const Segment& segment, bool transposed, Stream& stream);
  /// Assigns the buffers that are filled at use to the group, and returns their contents.
  AtUse& occupy_at_use(int group);
  Group& at(int group) { return groups_[static_cast<std::size_t>(group)]; }
  Slot& slot_of(int group);
  void gather(int group, Stream& compute);
  void gather(Segment& segment, Stream& stream);
  void gather_ahead(int group, Stream& compute);

  Segments& segments_;
  Axes axes_;
  Device& device_;
  Policy policy_;
  Options options_;
  int lowest_ = 0;  ///< the group at which backward ends
  const precision::ScaleSet* fixed_scales_;
  bool transposed_at_use_;
  std::vector<AtUse> at_use_;
  std::vector<Group> groups_;
  std::vector<Slot> slots_;
};

}  // namespace octet::store
