#include "reducer.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/ops/elementwise.h"
#include "octet/ops/wire.h"

namespace octet::store {
namespace {

/// Returns the buffer for gradients of tokens of one source.
const Array& gradient_of(const Segment& s, std::size_t source) {
  return source < s.earlier.size() ? s.earlier[source] : s.gradient;
}

model::GroupGradients views_of_source(const std::vector<Segment>& group, std::size_t source) {
  model::GroupGradients all;
  for (const Segment& s : group) {
    auto& matrices = all.gradients.emplace_back();
    for (const model::TensorSpec& t : s.spec->tensors) {
      const Array data = gradient_of(s, source).from(t.offset);
      matrices.push_back(
          {.data = data.data, .dtype = data.dtype, .rows = t.rows, .cols = t.cols, .ld = t.cols});
    }
  }
  return all;
}

model::GroupGradients views(const std::vector<Segment>& group) {
  std::size_t sources = 1;
  for (const Segment& s : group) sources = std::max(sources, 1 + s.earlier.size());
  model::GroupGradients all = views_of_source(group, sources - 1);
  for (std::size_t i = 0; sources > 1 && i < sources; ++i) all.by_source.push_back(views_of_source(group, i));
  return all;
}

/// Returns the gaps between tensors that GEMMs overwrite. Padding is included, because blocks share buffers.
std::vector<std::pair<std::int64_t, std::int64_t>> gaps(const Segment& s) {
  std::vector<std::pair<std::int64_t, std::int64_t>> runs;
  std::int64_t begin = 0;
  for (const model::TensorSpec& t : s.spec->tensors) {
    if (!t.gradient_by_gemm) continue;
    if (t.offset > begin) runs.emplace_back(begin, t.offset - begin);
    begin = t.offset + t.count();
  }
  if (s.padded > begin) runs.emplace_back(begin, s.padded - begin);
  return runs;
}

}  // namespace

Reducer::Reducer(Segments& segments, const Axes& axes, Device& device, const Options& options)
    : segments_(segments),
      axes_(axes),
      collectives_(axes.all),
      device_(device),
      policy_(policy_of(options, axes.all.size())),
      overlap_(options.overlap),
      options_(options),
      groups_(segments.groups.size()) {
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    groups_[g].gradients = views(segments.groups[g]);
    for (const Segment& s : segments.groups[g]) groups_[g].trained = groups_[g].trained || s.gradient;
    groups_[g].written = device.make_event();
    groups_[g].experts_summed = device.make_event();
    groups_[g].shards_summed = device.make_event();
    groups_[g].summed = device.make_event();
    groups_[g].complete = device.make_event();
    for (const Segment& s : segments.groups[g]) groups_[g].to_zero.push_back(gaps(s));
  }
  for (int i = 0; i < segments.slots; ++i) reduced_.push_back(device.make_event());
  if (!policy_.tree) return;
  comm::Place place = axes_.shards.place();
  own_.tree = sum_tree(place, options.micro_batches);
  if (axes_.replicas != nullptr) replica_order_ = sum_tree(axes_.replicas->place(), 1).order;
  if (!axes_.split()) return;
  const Sources sources = sources_of(options, place, axes_.same_experts.place());
  for (place.rank = sources.first; place.rank < sources.first + sources.count; ++place.rank)
    expert_group_.push_back({.tree = sum_tree(place, options.micro_batches)});
  split_order_ = joined(own_.tree.order, sources.count);
}

std::span<const Reducer::Leaves> Reducer::leaves_of(const Segment& s) const {
  if (s.earlier.empty()) return {&own_, 1};
  return expert_group_;
}

void Reducer::each_leaves(const std::function<void(Leaves&)>& act) {
  act(own_);
  for (Leaves& leaves : expert_group_) act(leaves);
}

int Reducer::slot(int group) const {
  return segments_.gradient_slot[static_cast<std::size_t>(group)];
}

Event& Reducer::reduced(int group) {
  return *reduced_[static_cast<std::size_t>(slot(group))];
}

comm::Wire Reducer::wire_of(const Segment& s) const {
  return reduce_wire(*s.spec, options_);
}

void Reducer::begin_step(int micro_batches) {
  check(!open_ && micro_batches > 0, "a step has at least one micro-batch");
  check(!policy_.tree || micro_batches == static_cast<int>(own_.tree.merges.size()),
        "a strict step has as many micro-batches as planned");
  micro_batches_ = micro_batches;
  index_ = -1;
}

void Reducer::begin_micro_batch(int index) {
  check(!open_ && index == index_ + 1 && index < micro_batches_, "micro-batches come in order");
  index_ = index;
  open_ = true;
  next_ = static_cast<int>(groups_.size()) - 1;
  if (index == 0) each_leaves([](Leaves& leaves) { leaves.height = 0; });
  for (Group& group : groups_) {
    group.asked = false;
    group.given = !group.trained;
    if (index == 0 || policy_.reduce_each || policy_.tree) group.fresh = true;
  }
}

bool Reducer::occupied(int group) {
  return at(group).asked && (reduces() ? group <= next_ : !at(group).given);
}

const model::GroupGradients& Reducer::gradients(int group, Stream& compute) {
  Group& g = at(group);
  if (!g.trained) return g.gradients;
  check(open_ && !g.given, "gradients are acquired inside a micro-batch, before they are released");
  if (g.asked) return g.gradients;
  if (policy_.shard_gradients) {
    for (int other = 0; other < static_cast<int>(groups_.size()); ++other) {
      check(other == group || slot(other) != slot(group) || !occupied(other),
            "gradients of a block are released before the block after the next acquires its own");
    }
  }
  g.asked = true;
  g.gradients.set_overwrite(g.fresh);
  if (g.fresh) clear(group, compute);
  return g.gradients;
}

void Reducer::clear(int group, Stream& compute) {
  const Group& g = at(group);
  compute.wait(reduced(group));
  const auto& segments = segments_.groups[static_cast<std::size_t>(group)];
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const Array& gradient = segments[i].gradient;
    if (!gradient) continue;
    for (const auto& [begin, count] : g.to_zero[i]) {
      for (std::size_t source = 0; source <= segments[i].earlier.size(); ++source)
        device_.zero(compute, gradient_of(segments[i], source).from(begin).data, gradient.bytes(count));
    }
  }
}

void Reducer::give_back(int group, Stream& compute) {
  if (!at(group).trained) return;
  check(at(group).asked && !at(group).given, "gradients are released once, after they were acquired");
  at(group).fresh = false;
  if (look_) look_(group, index_, compute);
  returned(group, compute);
}

void Reducer::contribute_nothing(int group, Stream& compute) {
  Group& g = at(group);
  if (!g.trained) return;
  check(open_ && !g.asked && !g.given, "a group adds nothing only if its gradients were not acquired");
  // Buffers that are not reduced now need no zeros: they stay fresh for a later micro-batch.
  if (g.fresh && (reduces() || policy_.tree)) {
    compute.wait(reduced(group));
    for (const Segment& s : segments_.groups[static_cast<std::size_t>(group)]) {
      if (!s.gradient) continue;
      for (std::size_t source = 0; source <= s.earlier.size(); ++source)
        device_.zero(compute, gradient_of(s, source).data, s.gradient.bytes(s.padded));
    }
    g.fresh = false;
  }
  returned(group, compute);
}

void Reducer::returned(int group, Stream& compute) {
  at(group).given = true;
  if (collectives_.size() == 1 && policy_.reduce_each) return accumulate(group, compute);
  if (policy_.tree) add_to_tree(group, compute);
  if (collectives_.size() == 1 || !reduces()) return;
  compute.record(*at(group).written);
  for (; next_ >= 0 && at(next_).given; --next_) reduce(next_, compute);
}

// With one rank, sums of narrow gradients are fp32.
void Reducer::accumulate(int group, Stream& compute) {
  for (Segment& s : segments_.groups[static_cast<std::size_t>(group)]) {
    if (!s.gradient || s.sum.data == s.gradient.data) continue;
    if (index_ == 0) {
      ops::convert(compute, s.gradient.data, s.gradient.dtype, s.sum.data, DType::f32, s.padded);
    } else {
      ops::add(compute, s.gradient.data, s.gradient.dtype, static_cast<float*>(s.sum.data), s.padded);
    }
  }
}

// Returns this rank's addends before the gradient buffers: by source, the sums left on its stack, and then
// the gradients of its tokens.
std::vector<const void*> Reducer::earlier_addends(const Segment& s) const {
  std::vector<const void*> addends;
  for (std::size_t source = 0; source <= s.earlier.size(); ++source) {
    if (policy_.tree) {
      const Leaves& leaves = leaves_of(s)[source];
      const auto first = s.tree.begin() + static_cast<std::ptrdiff_t>(source) * leaves.tree.buffers;
      addends.insert(addends.end(), first, first + (leaves.height - leaves.merges(index_)));
    }
    if (source < s.earlier.size()) addends.push_back(s.earlier[source].data);
  }
  return addends;
}

void Reducer::add_to_tree(int group, Stream& compute) {
  for (Segment& s : segments_.groups[static_cast<std::size_t>(group)]) {
    if (s.gradient && s.padded > 0) add_to_tree(s, compute);
  }
}

// A sum replaces the lower addend on the stack. In the last micro-batch it replaces the gradient buffers,
// from which it is reduced.
void Reducer::add_to_tree(Segment& s, Stream& compute) {
  const bool last = index_ + 1 == micro_batches_;
  for (std::size_t source = 0; source <= s.earlier.size(); ++source) {
    const Leaves& leaves = leaves_of(s)[source];
    const int merges = leaves.merges(index_);
    float* const* const stack = s.tree.data() + source * static_cast<std::size_t>(leaves.tree.buffers);
    auto* top = static_cast<float*>(gradient_of(s, source).data);
    for (int merge = 0; merge < merges; ++merge) {
      float* below = stack[leaves.height - 1 - merge];
      ops::add(compute, last ? below : top, DType::f32, last ? top : below, s.padded);
      if (!last) top = below;
    }
    if (last || merges > 0) continue;
    device_.copy(compute, stack[leaves.height], top, s.gradient.bytes(s.padded));
  }
}

void Reducer::sum(Segment& s, Stream& stream) {
  comm::Collectives& collectives = axes_.of(s);
  const comm::SumOrder* order = s.earlier.empty() ? &own_.tree.order : &split_order_;
  if (!policy_.tree) order = nullptr;
  const auto in_nodes = s.replicas > 1 ? reduces_group_hierarchically : reduces_hierarchically;
  const bool hierarchical = s.earlier.empty() && in_nodes(options_, collectives.place(), wire_of(s));
  // The sums of a sharding group are whole slices, and become the totals.
  const Array& to = s.replicas > 1 ? s.total : s.sum;
  collectives.reduce_scatter(stream, {.name = s.spec->name.c_str(),
                                      .from = s.gradient.data,
                                      .from_dtype = s.gradient.dtype,
                                      .to = to.data,
                                      .to_dtype = to.dtype,
                                      .count = s.slice,
                                      .accumulate = policy_.reduce_each && index_ > 0,
                                      .wire = wire_of(s),
                                      .hierarchical = hierarchical,
                                      .residual = s.residual,
                                      .order = order,
                                      .earlier = earlier_addends(s)});
}

// At stage 0, every rank updates everything and needs all sums. A narrow wire rounds them again. The owner
// uses the rounded sums too, so that all ranks update with the same bits.
void Reducer::gather_sums(Segment& s, Stream& stream) {
  const Array own = s.total.from(s.own);
  const std::size_t bytes = s.sum.bytes(s.slice);
  if (s.sum.data != own.data) device_.copy(stream, own.data, s.sum.data, bytes);
  comm::Collectives& collectives = axes_.of(s);
  collectives.all_gather_values(stream,
                                {.name = s.spec->name.c_str(),
                                 .buffer = s.total.data,
                                 .dtype = s.total.dtype,
                                 .count = s.slice,
                                 .wire = wire_of(s),
                                 .hierarchical = gathers_hierarchically(options_, collectives.place()),
                                 .residual = s.residual == nullptr ? nullptr : s.residual + s.own});
  if (s.sum.data != own.data && rounds_sums(s)) device_.copy(stream, s.sum.data, own.data, bytes);
}

bool Reducer::rounds_sums(const Segment& s) const {
  return wire_of(s) != comm::Wire::f32 && !ops::travels_as_it_lies(wire_of(s), s.total.dtype);
}

void Reducer::reduce_split_experts(int group, bool gathers) {
  Stream& stream = axes_.same_experts.reduce_stream();
  stream.wait(*at(group).written);
  for (Segment& s : segments_.groups[static_cast<std::size_t>(group)]) {
    if (!s.gradient || s.padded == 0 || !s.spec->split_experts) continue;
    sum(s, stream);
    if (gathers && s.world > 1) gather_sums(s, stream);
  }
  stream.record(*at(group).experts_summed);
  collectives_.reduce_stream().wait(*at(group).experts_summed);
}

// The gather sends the values in the wire format, so all ranks update with the same bits.
void Reducer::sum_replicas(Segment& s, Stream& stream) {
  comm::Collectives& replicas = *axes_.replicas;
  replicas.reduce_scatter(stream,
                          {.name = s.spec->name.c_str(),
                           .from = s.total.data,
                           .from_dtype = s.total.dtype,
                           .to = s.sum.data,
                           .to_dtype = s.sum.dtype,
                           .count = s.piece,
                           .wire = wire_of(s),
                           .hierarchical = reduces_hierarchically(options_, replicas.place(), wire_of(s)),
                           .order = policy_.tree ? &replica_order_ : nullptr});
  replicas.all_gather_values(stream, {.name = s.spec->name.c_str(),
                                      .buffer = s.total.data,
                                      .dtype = s.total.dtype,
                                      .count = s.piece,
                                      .wire = wire_of(s),
                                      .hierarchical = gathers_hierarchically(options_, replicas.place())});
}

void Reducer::reduce_replicas(int group, Stream& compute) {
  Stream& inside = axes_.shards.reduce_stream();
  inside.record(*at(group).shards_summed);
  // Sums that are stored in the gradient buffers keep these buffers in use.
  const bool apart = policy_.reduce_each || policy_.shard_gradients;
  if (apart) inside.record(reduced(group));
  if (index_ + 1 == micro_batches_) {
    Stream& stream = axes_.replicas->reduce_stream();
    stream.wait(*at(group).shards_summed);
    for (Segment& s : segments_.groups[static_cast<std::size_t>(group)]) {
      if (s.gradient && s.padded > 0) sum_replicas(s, stream);
    }
    stream.record(*at(group).summed);
    stream.record(*at(group).complete);
    if (!apart) stream.record(reduced(group));
    if (!overlap_) compute.wait(*at(group).complete);
  }
  if (!overlap_) compute.wait(reduced(group));
}

void Reducer::reduce(int group, Stream& compute) {
  Stream& stream = axes_.shards.reduce_stream();
  stream.wait(*at(group).written);
  const bool gathers = index_ + 1 == micro_batches_ && !policy_.shard_state;
  auto& segments = segments_.groups[static_cast<std::size_t>(group)];
  const auto each = [&](const auto& act) {
    for (Segment& s : segments) {
      if (s.gradient && s.padded > 0 && !s.spec->split_experts) act(s);
    }
  };
  bool rounds = false;  // the gather rounds this rank's sums again
  each([&](Segment& s) {
    sum(s, stream);
    rounds = rounds || (gathers && rounds_sums(s));
  });
  if (axes_.replicas != nullptr) return reduce_replicas(group, compute);
  if (axes_.split()) reduce_split_experts(group, gathers);
  if (!rounds) stream.record(*at(group).summed);
  if (gathers) each([&](Segment& s) { gather_sums(s, stream); });
  if (rounds) stream.record(*at(group).summed);
  stream.record(*at(group).complete);
  stream.record(reduced(group));
  if (!overlap_) compute.wait(reduced(group));
}

void Reducer::end_micro_batch() {
  check(open_, "a micro-batch ends once");
  for (const Group& group : groups_) check(group.given, "the gradients of every group are released");
  open_ = false;
  if (policy_.tree) each_leaves([&](Leaves& leaves) { leaves.height += 1 - leaves.merges(index_); });
}

void Reducer::forget_losses() {
  segments_.each([&](Segment& s) {
    if (s.residual == nullptr) return;
    Stream& stream = axes_.of(s).reduce_stream();
    device_.zero(stream, s.residual, static_cast<std::size_t>(s.padded) * sizeof *s.residual);
  });
}

// Groups are reduced in order on one stream, so one event covers the earlier groups.
void Reducer::wait_for_sums(int group, Stream& stream) {
  stream.wait(*at(group).summed);
}

void Reducer::wait_for_totals(int group, Stream& stream) {
  stream.wait(*at(group).complete);
}

}  // namespace octet::store
