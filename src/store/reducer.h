#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "octet/comm/collectives.h"
#include "segments.h"
#include "sum_tree.h"

namespace octet::store {

/// Gradient buffers, and their way into the sums over ranks and micro-batches.
///
/// A group's buffers are fresh when they hold nothing of this sum yet: at the first micro-batch, or at every
/// one where each is reduced by itself. Reductions are enqueued in the order head, last block, …, embedding,
/// whatever order groups come back in, so that those of all ranks match. With a tree of sums every
/// micro-batch's buffers are fresh too, and are added to the rank's stack of sums when they come back.
class Reducer {
 public:
  Reducer(Segments& segments, comm::Collectives& collectives, Device& device, const Options& options);

  void begin_step(int micro_batches);
  void begin_micro_batch(int index);
  const model::GroupGradients& gradients(int group, Stream& compute);
  void give_back(int group, Stream& compute);
  /// Where the gradients of a group lie.
  const model::GroupGradients& buffers(int group) const {
    return groups_[static_cast<std::size_t>(group)].gradients;
  }
  /// Calls `look` whenever a group is given back, before anything reads its gradients; empty: nobody looks.
  using Look = std::function<void(int group, int micro_batch, Stream& compute)>;
  void watch(Look look) { look_ = std::move(look); }
  /// Makes the buffers of a group ready for gradients that are no part of a step.
  void clear(int group, Stream& compute);
  /// Zero from this rank, where `group` was not asked for.
  void contribute_nothing(int group, Stream& compute);
  bool was_asked(int group) const { return groups_[static_cast<std::size_t>(group)].asked; }
  void end_micro_batch();
  /// The sums that this rank owns, of `group` and of all groups behind it in the layout (which are reduced
  /// before it), are complete for work enqueued on `stream` after this call.
  void wait_for_sums(int group, Stream& stream);
  /// The same of what an update of `group` reads: at stage 0 the sums of all ranks.
  void wait_for_totals(int group, Stream& stream);
  /// What narrow wires lost of gradients that were never used is not made up for.
  void forget_losses();
  /// Between micro-batches, and the last one has been.
  bool complete() const { return !open_ && index_ + 1 == micro_batches_; }

 private:
  struct Group {
    model::GroupGradients gradients;
    bool trained = false;  ///< else there are none, and nobody gives them back
    bool fresh = true;
    bool asked = false;
    bool given = false;
    std::unique_ptr<Event> written;
    std::unique_ptr<Event> summed;    ///< what this rank owns
    std::unique_ptr<Event> complete;  ///< what an update reads
    /// Per segment: runs of elements that no product overwrites, as (begin, count).
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> to_zero;
  };
  Group& at(int group) { return groups_[static_cast<std::size_t>(group)]; }
  int slot(int group) const;
  Event& reduced(int group);
  comm::Wire wire_of(const Segment& segment) const;
  /// Whether gathering sums changes those of their owner.
  bool rounds_sums(const Segment& segment) const;
  bool reduces() const { return policy_.reduce_each || index_ + 1 == micro_batches_; }
  /// The gradient buffers of a group are in use: asked for, and neither reduced nor put on the stack.
  bool occupied(int group);
  void add_to_tree(int group, Stream& compute);
  std::vector<const float*> left_on_stack(const Segment& segment) const;
  void returned(int group, Stream& compute);
  void reduce(int group, Stream& compute);
  void sum(Segment& segment, Stream& stream);
  void gather_sums(Segment& segment, Stream& stream);
  void accumulate(int group, Stream& compute);

  Segments& segments_;
  comm::Collectives& collectives_;
  Device& device_;
  Policy policy_;
  bool overlap_;
  Options options_;
  SumTree tree_;    ///< empty without
  int height_ = 0;  ///< of the stack of sums before this micro-batch's
  int micro_batches_ = 0;
  int index_ = -1;
  bool open_ = false;  ///< inside a micro-batch
  int next_ = -1;      ///< the group to be reduced next
  Look look_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<Event>> reduced_;  ///< per slot of gradient buffers
};

}  // namespace octet::store
