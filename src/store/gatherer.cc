#include "gatherer.h"

#include <algorithm>
#include <utility>

#include "octet/base/error.h"
#include "octet/ops/nf4.h"
#include "octet/ops/quantize.h"

namespace octet::store {

Gatherer::Gatherer(Segments& segments, const precision::ScaleSet* fixed_scales, const Axes& axes,
                   Device& device, const Options& options)
    : segments_(segments),
      axes_(axes),
      device_(device),
      policy_(policy_of(options, axes.all.size())),
      options_(options),
      fixed_scales_(fixed_scales),
      transposed_at_use_(options.transposed == TransposedWeights::at_use),
      at_use_(static_cast<std::size_t>(segments.slots)),
      groups_(segments.groups.size()),
      slots_(static_cast<std::size_t>(segments.slots)) {
  for (Group& group : groups_) {
    group.changed = device.make_event();
    group.gathered = device.make_event();
    group.experts_gathered = device.make_event();
  }
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    for (const Segment& s : segments.groups[g]) groups_[g].trains = groups_[g].trains || s.row.trained();
  }
  for (Slot& slot : slots_) slot.released = device.make_event();
  const auto lowest = std::ranges::find_if(groups_, &Group::trains);
  lowest_ = static_cast<int>(lowest - groups_.begin());
}

Gatherer::Slot& Gatherer::slot_of(int group) {
  return slots_[static_cast<std::size_t>(segments_.copy_slot[static_cast<std::size_t>(group)])];
}

void Gatherer::transpose(const Segment& s, Stream& stream) {
  for (std::size_t t = 0; t < s.scaled.size(); ++t) {
    const std::int64_t cols = s.spec->tensors[t].cols;
    for (const ScaledRun& run : s.scaled[t]) {
      ops::transpose(stream, {.from = s.copy + run.begin,
                              .rows = run.count / cols,
                              .cols = cols,
                              .to = s.transposed + run.begin});
    }
  }
}

void Gatherer::gather(int group, Stream& compute) {
  Slot& slot = slot_of(group);
  if (slot.occupant >= 0 && slot.occupant != group) {
    check(at(slot.occupant).holds == 0, "a block is released before the block after the next is acquired");
    at(slot.occupant).whole = at(slot.occupant).fixed = false;
  }
  slot.occupant = group;
  Stream& stream = axes_.shards.gather_stream();
  const auto each = [&](comm::Collectives& collectives) {
    collectives.gather_stream().wait(*at(group).changed);
    collectives.gather_stream().wait(*slot.released);
    for (Segment& s : segments_.groups[static_cast<std::size_t>(group)]) {
      const bool there = !s.row.trained() && at(group).fixed;
      if (&axes_.of(s) == &collectives && s.padded > 0 && s.row.gathered() && !there)
        gather(s, collectives.gather_stream());
    }
  };
  axes_.each(each);
  if (axes_.split()) {
    axes_.same_experts.gather_stream().record(*at(group).experts_gathered);
    stream.wait(*at(group).experts_gathered);
  }
  stream.record(*at(group).gathered);
  if (!options_.overlap) compute.wait(*at(group).gathered);
  at(group).whole = at(group).fixed = true;
}

void Gatherer::gather(Segment& s, Stream& stream) {
  std::uint8_t* place = s.gather_buffer() + static_cast<std::size_t>(s.rank) * s.gather_bytes();
  comm::Collectives& collectives = axes_.of(s);
  const bool hierarchical = gathers_hierarchically(options_, collectives.place());
  if (s.gather_from() != place) device_.copy(stream, place, s.gather_from(), s.gather_bytes());
  if (s.gathered_narrow()) {
    collectives.all_gather_values(stream, {.name = s.spec->name.c_str(),
                                           .buffer = s.copy,
                                           .dtype = s.dtype,
                                           .count = s.slice,
                                           .wire = s.gather,
                                           .hierarchical = hierarchical});
  } else {
    collectives.all_gather(stream, {.name = s.spec->name.c_str(),
                                    .buffer = s.gather_buffer(),
                                    .bytes = static_cast<std::int64_t>(s.gather_bytes()),
                                    .hierarchical = hierarchical});
  }
  if (s.transposed != nullptr && !transposed_at_use_ && !s.row.decoded()) transpose(s, stream);
}

void Gatherer::gather_ahead(int group, Stream& compute) {
  if (!options_.overlap || group < 0 || group >= static_cast<int>(groups_.size()) || at(group).whole) return;
  const int occupant = slot_of(group).occupant;
  if (occupant >= 0 && at(occupant).holds > 0) return;
  gather(group, compute);
}

Gatherer::AtUse& Gatherer::occupy_at_use(int group) {
  AtUse& slot = at_use_[static_cast<std::size_t>(segments_.at_use_slot[static_cast<std::size_t>(group)])];
  if (slot.occupant == group) return slot;
  check(slot.occupant < 0 || at(slot.occupant).holds == 0,
        "a block that is made at its use is released before the next block is acquired");
  return slot = {.occupant = group};
}

void Gatherer::decode(const Segment& s, bool transposed, Stream& stream) {
  for (const Nf4Run& run : s.nf4_runs) {
    const Nf4Part& part = s.nf4[run.first];
    std::uint8_t* to = s.copy + s.copy_bytes(part.begin);
    const std::uint8_t* codes = s.stored + part.codes;
    if (!part.quantised) {
      device_.copy(stream, to, codes, s.copy_bytes(part.count));
    } else if (is_fp8(s.dtype)) {
      ops::nf4_to_fp8(stream, {.codes = codes,
                               .scales = part.scales_in(s.stored),
                               .rows = part.count / part.cols,
                               .cols = part.cols,
                               .through = segments_.compute,
                               .format = s.dtype,
                               .scale = fixed_scales_->scale(part.scale),
                               .row = to,
                               .transposed = transposed ? s.transposed + part.flipped : nullptr,
                               .transposed_ld = part.transposed_ld,
                               .series = run.series});
    } else {
      ops::nf4_decode(stream, {.codes = codes,
                               .scales = part.scales_in(s.stored),
                               .count = part.count,
                               .to = to,
                               .dtype = s.dtype,
                               .series = run.series});
    }
  }
}

void Gatherer::make_at_use(int group, model::Pass pass, Stream& compute) {
  const bool backward = pass == model::Pass::backward;
  AtUse* slot = nullptr;
  bool decoded = false, transposed = false;  // by an earlier acquire
  for (const Segment& s : segments_.groups[static_cast<std::size_t>(group)]) {
    const bool transposes = backward && s.transposed != nullptr && (transposed_at_use_ || s.row.decoded());
    if (!s.row.decoded() && !transposes) continue;
    if (slot == nullptr) {
      slot = &occupy_at_use(group);
      decoded = slot->decoded, transposed = slot->transposed;
      slot->decoded = true, slot->transposed = transposed || backward;
    }
    // Transposed copies of trained weights are remade, because these weights change.
    bool turns = transposes && !(s.row.decoded() && transposed);
    if (s.row.decoded() && !decoded) {
      const bool both = turns && std::ranges::all_of(s.nf4, &Nf4Part::quantised);
      decode(s, both, compute);
      turns = turns && !both;
    }
    if (turns) transpose(s, compute);
  }
}

void Gatherer::acquire(int group, model::Pass pass, Stream& compute) {
  ++at(group).holds;
  make_whole(group, pass, compute);
  make_at_use(group, pass, compute);
}

void Gatherer::rehearse(int group, model::Pass pass, Stream& compute) {
  make_at_use(group, pass, compute);
  // The contents of the shared buffers may be of another group, so a step must not reuse the result.
  at_use_[static_cast<std::size_t>(segments_.at_use_slot[static_cast<std::size_t>(group)])] = {};
}

void Gatherer::make_whole(int group, model::Pass pass, Stream& compute) {
  if (!policy_.shard_state) return compute.wait(*at(group).changed);
  if (!at(group).whole) gather(group, compute);
  compute.wait(*at(group).gathered);
  if (!policy_.shard_parameters) return;
  // The embedding is not gathered ahead, because a tied head acquires it at the other end of the pass.
  if (pass == model::Pass::forward && group > 0) gather_ahead(group + 1, compute);
  if (pass == model::Pass::backward && group > std::max(1, lowest_)) gather_ahead(group - 1, compute);
}

void Gatherer::release(int group, Stream& compute) {
  check(at(group).holds > 0, "a group is released as often as it was acquired");
  if (--at(group).holds == 0 && policy_.shard_parameters) compute.record(*slot_of(group).released);
}

void Gatherer::before_change(Stream& compute) {
  for (Group& group : groups_) compute.wait(policy_.shard_state ? *group.gathered : *group.changed);
}

void Gatherer::changed(int group, Stream& stream) {
  check(at(group).holds == 0, "parameters change only while their group is not acquired");
  // A gathered copy stays valid if all its weights are frozen.
  at(group).whole = at(group).whole && at(group).fixed && !at(group).trains;
  stream.record(*at(group).changed);
}

void Gatherer::loaded() {
  for (Group& group : groups_) group.fixed = false;
  for (AtUse& slot : at_use_) slot = {};
}

void Gatherer::changed_and_ready(int group, Stream& compute) {
  changed(group, compute);
  if (policy_.shard_state && !policy_.shard_parameters && !at(group).whole) gather(group, compute);
}

void Gatherer::ahead(Stream& compute) {
  if (!policy_.shard_parameters) return;
  gather_ahead(0, compute);
  gather_ahead(1, compute);
}

}  // namespace octet::store
