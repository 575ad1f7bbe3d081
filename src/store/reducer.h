#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "segments.h"
#include "sum_tree.h"

namespace octet::store {

/// Owns the gradient buffers and reduces them into the sums over ranks and micro-batches.
///
/// A group's buffers are fresh if they hold nothing of the present sum yet: at the first micro-batch, or at
/// every micro-batch if each is reduced separately. Reductions are enqueued in the order head, last block, …,
/// embedding, independent of the order of give_back, so that they match on all ranks. With a sum tree, the
/// buffers are also fresh at every micro-batch; give_back adds them to the rank's stack of sums.
///
/// With sharding groups, each micro-batch is reduced inside the group. The sums of the groups are added once
/// per step, on the reduce stream of the ranks with the same shard. This overlaps with the reduction of the
/// next group of parameters.
class Reducer {
 public:
  Reducer(Segments& segments, const Axes& axes, Device& device, const Options& options);

  void begin_step(int micro_batches);
  void begin_micro_batch(int index);
  const model::GroupGradients& gradients(int group, Stream& compute);
  void give_back(int group, Stream& compute);
  /// Returns the gradient buffers of a group.
  const model::GroupGradients& buffers(int group) const {
    return groups_[static_cast<std::size_t>(group)].gradients;
  }
  /// Calls `look` whenever a group is given back, before its gradients are read. An empty `look` disables
  /// this.
  using Look = std::function<void(int group, int micro_batch, Stream& compute)>;
  void watch(Look look) { look_ = std::move(look); }
  /// Prepares the buffers of a group for gradients outside a step.
  void clear(int group, Stream& compute);
  /// Contributes zeros for a group without gradients() in this micro-batch.
  void contribute_nothing(int group, Stream& compute);
  bool was_asked(int group) const { return groups_[static_cast<std::size_t>(group)].asked; }
  void end_micro_batch();
  /// Makes `stream` wait until this rank's sums of `group` are complete. Groups after it in the layout are
  /// reduced earlier, so their sums are complete too.
  void wait_for_sums(int group, Stream& stream);
  /// Like wait_for_sums(), but for the sums that an update of `group` reads: at stage 0 the sums of all
  /// ranks.
  void wait_for_totals(int group, Stream& stream);
  /// Sets the residuals of narrow wires to zero, because their gradients were not used.
  void forget_losses();
  /// Returns whether the last micro-batch of the step has ended.
  bool complete() const { return !open_ && index_ + 1 == micro_batches_; }

 private:
  struct Group {
    model::GroupGradients gradients;
    bool trained = false;  ///< if not, there are no gradients
    bool fresh = true;
    bool asked = false;
    bool given = false;
    std::unique_ptr<Event> written;
    std::unique_ptr<Event> experts_summed;  ///< the sums that fewer ranks share are complete
    std::unique_ptr<Event> shards_summed;   ///< the sums of the sharding group are complete
    std::unique_ptr<Event> summed;          ///< this rank's sums are complete
    std::unique_ptr<Event> complete;        ///< the sums that an update reads are complete
    /// Per segment: runs of elements that no GEMM overwrites, as (begin, count).
    std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> to_zero;
  };
  Group& at(int group) { return groups_[static_cast<std::size_t>(group)]; }
  int slot(int group) const;
  Event& reduced(int group);
  comm::Wire wire_of(const Segment& segment) const;
  /// Returns whether gathering rounds the owner's sums.
  bool rounds_sums(const Segment& segment) const;
  bool reduces() const { return policy_.reduce_each || index_ + 1 == micro_batches_; }
  /// Returns whether the gradient buffers of a group are in use: requested, and neither reduced nor put on
  /// the stack.
  bool occupied(int group);
  void add_to_tree(int group, Stream& compute);
  void add_to_tree(Segment& segment, Stream& compute);
  std::vector<const void*> earlier_addends(const Segment& segment) const;
  void returned(int group, Stream& compute);
  void reduce(int group, Stream& compute);
  void sum(Segment& segment, Stream& stream);
  void gather_sums(Segment& segment, Stream& stream);
  void reduce_split_experts(int group, bool gathers);
  /// Sums the shards of a sharding group over all groups, and sends each rank's piece to the ranks with the
  /// same shard.
  void sum_replicas(Segment& segment, Stream& stream);
  void reduce_replicas(int group, Stream& compute);
  void accumulate(int group, Stream& compute);

  Segments& segments_;
  Axes axes_;
  comm::Collectives& collectives_;  ///< of all ranks
  Device& device_;
  Policy policy_;
  bool overlap_;
  Options options_;
  /// The micro-batches of a rank in the tree of sums.
  struct Leaves {
    SumTree tree;    ///< empty without `strict`
    int height = 0;  ///< height of the stack of sums before this micro-batch
    int merges(int micro_batch) const { return tree.merges[static_cast<std::size_t>(micro_batch)]; }
  };
  /// Returns the leaves of each source of a segment's gradients.
  std::span<const Leaves> leaves_of(const Segment& segment) const;
  void each_leaves(const std::function<void(Leaves&)>& act);
  Leaves own_;                        ///< of this rank
  std::vector<Leaves> expert_group_;  ///< of the ranks of its expert group, with sums by source
  comm::SumOrder split_order_;        ///< the order of sums of split experts
  comm::SumOrder replica_order_;      ///< the order of the sums of sharding groups
  int micro_batches_ = 0;
  int index_ = -1;
  bool open_ = false;  ///< inside a micro-batch
  int next_ = -1;      ///< the next group to reduce
  Look look_;
  std::vector<Group> groups_;
  std::vector<std::unique_ptr<Event>> reduced_;  ///< per slot of gradient buffers
};

}  // namespace octet::store
