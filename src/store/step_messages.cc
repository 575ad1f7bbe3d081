#include "octet/store/step_messages.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "octet/comm/job.h"
#include "octet/comm/mesh.h"
#include "segments.h"
#include "sum_tree.h"

namespace octet::store {
namespace {

/// Returns the bytes of one rank's slice of `dtype` values in the wire format.
std::int64_t slice_bytes(comm::Wire wire, DType dtype, std::int64_t count) {
  return static_cast<std::int64_t>(ops::wire_bytes(ops::wire_of_values(wire, dtype), count));
}

/// Bytes that a rank sends per byte of a collective. They are multiplied by sizes, so the ranks are
/// enumerated once.
class PerByte {
 public:
  explicit PerByte(const comm::Place& place) {
    for (const bool hierarchical : {false, true}) {
      gather_[hierarchical] = comm::sent_by_gather(place, 1, hierarchical);
      wire_[hierarchical] = comm::sent_by_reduction(place, 1, 0, hierarchical);
      inside_[hierarchical] = comm::sent_by_reduction(place, 0, 1, hierarchical);
    }
  }
  comm::Sent gather(std::int64_t slice, bool hierarchical) const { return gather_[hierarchical] * slice; }
  comm::Sent reduction(std::int64_t wire, std::int64_t inside, bool hierarchical) const {
    comm::Sent sent = wire_[hierarchical] * wire;
    return sent += inside_[hierarchical] * inside;
  }

 private:
  std::array<comm::Sent, 2> gather_, wire_, inside_;
};

/// This rank's places in its sharding group, and among the ranks with the same shards.
struct GroupPlaces {
  comm::Place shards, replicas;
};

GroupPlaces group_places(const Options& options, const comm::Place& place, Device& device) {
  if (!has_replicas(options, place.size)) return {.shards = place, .replicas = {}};
  const auto job = comm::make_dry_job(place);
  const comm::Mesh mesh = group_mesh(options, place.size);
  const auto along = [&](const char* axis) {
    return job->collectives(mesh.group(axis, place.rank), device, comm::Carrier::automatic)->place();
  };
  return {.shards = along(kShardAxis), .replicas = along(kReplicaAxis)};
}

/// The groups, and the last group of the backward pass.
struct Walk {
  int groups = 0;
  int lowest = 0;  ///< the group at which backward ends
};

/// Gathers of a segment in a step, by the pass that needs them.
struct Gathers {
  std::int64_t forward = 0, backward = 0;
};

/// Returns the gathers of a segment. At stage 3, blocks share two buffers. When backward begins, these still
/// hold the last two blocks. When the next forward pass begins, they hold the last two blocks of backward,
/// until other blocks replace them. The embedding and the head stay in their buffers. Trained segments are
/// gathered after each update in any case.
Gathers gathers_of(const Placement& row, int group, const Walk& walk, int micro_batches) {
  if (!row.gathered()) return {};
  const std::int64_t after_update = row.trained() ? 1 : 0;
  if (row.axis == Axis::none || group == 0 || group == walk.groups - 1) return {after_update, 0};
  const bool for_backward = group < walk.groups - 3 && group >= walk.lowest;
  const int first_left = std::clamp(walk.lowest, 1, std::max(1, walk.groups - 3));
  const bool for_forward = group > 2 || (group != first_left && group != first_left + 1);
  const std::int64_t first = for_forward ? 1 : after_update;
  return {first + (for_forward ? micro_batches - 1 : 0), for_backward ? micro_batches : 0};
}

/// Adds up the bytes that a group sends, by the computation that overlaps with the transfer.
class Counter {
 public:
  Counter(StepMessages& sent, bool overlap, const Walk& walk) : sent_(sent), overlap_(overlap), walk_(walk) {}

  void reduced(int group, const comm::Sent& each, std::int64_t times) {
    sent_.reduced += each * times;
    // Except for the last micro-batch, reductions overlap with the next micro-batch.
    const std::int64_t alone = group == walk_.lowest ? times / sent_.beside.sum_passes : 0;
    to(sent_.beside.alone) += each * alone;
    to(sent_.beside.sums) += each * (times - alone);
  }
  /// The sums of sharding groups are added once per step.
  void added(int group, const comm::Sent& bytes) {
    sent_.reduced += bytes;
    to(group == walk_.lowest ? sent_.beside.alone : sent_.beside.sums) += bytes;
  }
  /// At stage 0, and to replicas of a shard, each sum is sent to all ranks as soon as it is complete.
  void sums(int group, const comm::Sent& bytes) {
    sent_.gathered += bytes;
    to(group == walk_.lowest ? sent_.beside.alone : sent_.beside.sums) += bytes;
  }
  void gathered(int group, const comm::Sent& each, const Gathers& times) {
    sent_.gathered += each * (times.forward + times.backward);
    to(sent_.beside.backward) += each * times.backward;
    to(group == 0 ? sent_.beside.alone : sent_.beside.forward) += each * times.forward;
  }

 private:
  comm::Sent& to(comm::Sent& place) { return overlap_ ? place : sent_.beside.alone; }

  StepMessages& sent_;
  bool overlap_;
  const Walk& walk_;
};

}  // namespace

StepMessages step_messages(const model::ParameterLayout& layout, const Options& options,
                           const comm::Place& place, int micro_batches, const comm::Place& same_experts) {
  StepMessages sent;
  if (place.size == 1) return sent;
  const std::unique_ptr<Device> dry = make_dry_device();
  Arena arena(*dry);
  Options counted = options;
  counted.micro_batches = micro_batches;
  const Segments segments = reserve_segments(layout, arena, {place, same_experts}, counted);
  const Policy policy = policy_of(counted, place.size);
  const GroupPlaces groups = group_places(counted, place, *dry);
  // With `strict`, a rank sends the sums left on its stack, once. Otherwise it sends one sum, once or per
  // micro-batch. With sums by source, it sends the sums of each source.
  const auto reductions = [&](const Segment& s) -> std::int64_t {
    const std::int64_t sources = 1 + std::ssize(s.earlier);
    if (!policy.tree) return sources * (policy.reduce_each ? micro_batches : 1);
    const comm::Place& ranks = groups.shards;
    const comm::SumOrder order = sum_tree(ranks, micro_batches).order;
    if (s.earlier.empty()) return order.parts[static_cast<std::size_t>(ranks.rank)];
    return joined(order, static_cast<int>(sources)).parts[static_cast<std::size_t>(same_experts.rank)];
  };
  const Walk walk{.groups = static_cast<int>(segments.groups.size()),
                  .lowest = model::lowest_trained_group(layout)};
  // With `strict`, sums overlap only with the last backward pass.
  sent.beside.sum_passes = policy.reduce_each && !policy.tree ? micro_batches : 1;
  sent.beside.forward_passes = policy.shard_parameters ? micro_batches : 1;
  Counter counter(sent, counted.overlap, walk);
  const PerByte of_shards(groups.shards), of_replicas(groups.replicas), of_same_experts(same_experts);
  for (int g = 0; g < walk.groups; ++g) {
    for (const Segment& s : segments.groups[static_cast<std::size_t>(g)]) {
      const comm::Place& ranks = s.spec->split_experts ? same_experts : groups.shards;
      const PerByte& per_byte = s.spec->split_experts ? of_same_experts : of_shards;
      const bool gathers_so = gathers_hierarchically(counted, ranks);
      const std::int64_t shard = s.gathered_narrow() ? slice_bytes(s.gather, s.dtype, s.slice)
                                                     : static_cast<std::int64_t>(s.gather_bytes());
      counter.gathered(g, per_byte.gather(shard, gathers_so), gathers_of(s.row, g, walk, micro_batches));
      if (!s.gradient) continue;
      const comm::Wire wire = reduce_wire(*s.spec, counted);
      const auto in_nodes = s.replicas > 1 ? reduces_group_hierarchically : reduces_hierarchically;
      counter.reduced(g,
                      per_byte.reduction(slice_bytes(wire, s.gradient.dtype, s.slice),
                                         slice_bytes(comm::Wire::f32, s.gradient.dtype, s.slice),
                                         s.earlier.empty() && in_nodes(counted, ranks, wire)),
                      reductions(s));
      if (s.replicas > 1) {
        const std::int64_t narrow = slice_bytes(wire, s.total.dtype, s.piece);
        counter.added(g, of_replicas.reduction(narrow, slice_bytes(comm::Wire::f32, s.total.dtype, s.piece),
                                               reduces_hierarchically(counted, groups.replicas, wire)));
        counter.sums(g, of_replicas.gather(narrow, gathers_hierarchically(counted, groups.replicas)));
      }
      if (s.row.state_axis != Axis::none) continue;
      counter.sums(g, per_byte.gather(slice_bytes(wire, s.total.dtype, s.slice), gathers_so));
    }
  }
  return sent;
}

}  // namespace octet::store
