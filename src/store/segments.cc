#include "segments.h"

#include <algorithm>
#include <map>
#include <string>

#include "octet/base/error.h"
#include "octet/ops/gemm.h"
#include "sum_tree.h"

namespace octet::store {
namespace {

/// Returns the wire format in which a segment is gathered. f32 means unconverted: for weights that are not
/// trained, and if the configured format is not narrower than the copy.
comm::Wire gather_wire(const Segment& s, const Options& options) {
  if (!s.row.trained() || !s.row.gathered()) return comm::Wire::f32;
  const bool narrower = options.gather_wire == comm::Wire::bf16 ? s.dtype == DType::f32 : !is_fp8(s.dtype);
  return narrower && may_be_narrow(*s.spec) ? options.gather_wire : comm::Wire::f32;
}

/// Returns the slot of a group if groups share buffers. The embedding and the head have their own slots,
/// since they may be in use together with any block. Blocks alternate between two slots: one is in use, the
/// other is filled or drained.
int shared_slot(int group, int groups) {
  if (group == 0) return 0;
  if (group == groups - 1) return 1;
  return 2 + group % 2;
}

std::vector<int> slots_of(int groups, bool shared) {
  std::vector<int> slots;
  for (int g = 0; g < groups; ++g) slots.push_back(shared ? shared_slot(g, groups) : g);
  return slots;
}

/// Weights that are decoded or transposed at use are made on the stream that uses them, so one slot serves
/// all blocks.
std::vector<int> slots_at_use(int groups) {
  std::vector<int> slots;
  for (int g = 0; g < groups; ++g) slots.push_back(std::min(shared_slot(g, groups), 2));
  return slots;
}

std::int64_t gradient_bytes(const Segment& s) {
  if (!s.row.trained()) return 0;
  return static_cast<std::int64_t>(s.gradient.bytes(s.padded) * (1 + s.earlier.size()));
}

void reserve(Array& array, Arena& arena, const char* name, std::int64_t count,
             MemoryKind kind = MemoryKind::device) {
  array.data = arena.reserve(name, array.bytes(count), kind);
}

/// Returns the memory kind of state that only updates access.
MemoryKind kind_of_state(const Segment& s, const Arena& arena) {
  const bool away = s.row.state_home == Home::pinned && arena.device().planned_traits().has_host_link;
  return away ? MemoryKind::pinned : MemoryKind::device;
}

/// Places the segments of each group one after another in the buffer of its slot.
template <typename BytesOf, typename Place>
void place_in_slots(Segments& all, const std::vector<int>& slot, Arena& arena, const char* name,
                    BytesOf&& bytes_of, Place&& place) {
  std::vector<std::size_t> sizes(static_cast<std::size_t>(all.slots), 0);
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    std::size_t bytes = 0;
    for (const Segment& s : all.groups[g]) bytes += static_cast<std::size_t>(bytes_of(s));
    std::size_t& size = sizes[static_cast<std::size_t>(slot[g])];
    size = std::max(size, bytes);
  }
  std::vector<std::uint8_t*> buffers;
  for (const std::size_t size : sizes) buffers.push_back(arena.reserve_as<std::uint8_t>(name, size));
  for (std::size_t g = 0; g < all.groups.size(); ++g) {
    std::uint8_t* at = buffers[static_cast<std::size_t>(slot[g])];
    for (Segment& s : all.groups[g]) {
      const auto bytes = static_cast<std::size_t>(bytes_of(s));
      if (bytes > 0) place(s, at);
      at += bytes;
    }
  }
}

/// Returns the bytes of the transposed copies of a segment's matrices. Only a backward pass reads them.
std::size_t transposed_bytes(const Segment& s, const Arena& arena) {
  const bool read = s.row.backward() && is_fp8(s.dtype) && ops::gemm_needs_transposed_fp8(arena.device());
  return read ? s.copy_bytes(s.padded) : 0;
}

/// Reserves masters and unsharded compute copies.
void reserve_whole(Segment& s, Arena& arena) {
  const MemoryKind state = kind_of_state(s, arena);
  if (s.gathered_narrow()) {
    s.copy = arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.padded));
    reserve(s.master, arena, "parameters/master", s.state_count, state);
    s.master_away = state == MemoryKind::pinned;
    s.shard = s.master_is_copy() ? static_cast<std::uint8_t*>(s.master.data)
                                 : arena.reserve_as<std::uint8_t>("parameters/shards", s.copy_bytes(s.slice));
    return;
  }
  if (s.master_is_copy()) {
    const char* name = s.row.gathered() ? "parameters/copies" : "parameters/master";
    s.copy = arena.reserve_as<std::uint8_t>(name, s.copy_bytes(s.padded));
    s.master.data = s.copy + s.copy_bytes(s.state_begin);
  } else {
    s.copy = arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.padded));
    reserve(s.master, arena, "parameters/master", s.state_count, state);
    s.master_away = state == MemoryKind::pinned;
  }
  s.shard = s.copy + s.copy_bytes(s.own);
}

/// Reserves masters and this rank's slice of sharded copies. Masters that are gathered before each use stay
/// in device memory.
void reserve_sharded(Segment& s, Arena& arena) {
  const MemoryKind kind = s.master_is_copy() ? MemoryKind::device : kind_of_state(s, arena);
  reserve(s.master, arena, "parameters/master", s.state_count, kind);
  s.master_away = kind == MemoryKind::pinned;
  s.shard = s.master_is_copy() ? static_cast<std::uint8_t*>(s.master.data)
                               : arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.slice));
}

/// Reserves the weights of a segment that is not trained.
void reserve_fixed(Segment& s, Arena& arena, const precision::Recipe& recipe) {
  const bool whole = s.row.axis == Axis::none;
  if (is_fp8(s.dtype) && recipe.rows()) {
    check(whole && !s.row.decoded(), "row-scaled weights are unsharded and in FP8");
    s.row_scales = arena.reserve_as<float>(
        "parameters/fixed", static_cast<std::size_t>(row_scale_of(*s.spec, s.spec->tensors.size())));
  }
  if (s.row.decoded()) {
    const std::int64_t bytes = whole ? s.world * s.stored_slice : s.stored_slice;
    auto* weights = arena.reserve_as<std::uint8_t>("parameters/fixed", static_cast<std::size_t>(bytes));
    if (whole) s.stored = weights;
    s.stored_shard = whole ? weights + s.rank * s.stored_slice : weights;
    return;
  }
  auto* weights = arena.reserve_as<std::uint8_t>("parameters/fixed", s.copy_bytes(s.state_count));
  if (whole) s.copy = weights;
  s.shard = whole ? weights + s.copy_bytes(s.own) : weights;
}

/// Reserves the buffers of decoded values. One buffer serves all blocks, since they are decoded on the stream
/// that uses them.
void reserve_decoded(Segments& all, Arena& arena) {
  place_in_slots(
      all, all.at_use_slot, arena, "parameters/decoded",
      [](const Segment& s) { return s.row.decoded() ? s.copy_bytes(s.padded) : 0; },
      [](Segment& s, std::uint8_t* at) { s.copy = at; });
}

void reserve_parameters(Segments& all, Arena& arena, const Policy& policy, const Options& options) {
  const bool at_use = options.transposed == TransposedWeights::at_use;
  const auto transposed_at_use = [&](const Segment& s) { return at_use || s.row.decoded(); };
  all.each([&](Segment& s) {
    if (!s.row.trained()) {
      reserve_fixed(s, arena, options.recipe);
    } else if (s.row.axis == Axis::none) {
      reserve_whole(s, arena);
    } else {
      reserve_sharded(s, arena);
    }
    if (s.row.axis != Axis::none || transposed_at_use(s)) return;
    s.transposed = arena.reserve_as<std::uint8_t>("parameters/transposed", transposed_bytes(s, arena));
  });
  if (policy.shard_parameters) {
    place_in_slots(
        all, all.copy_slot, arena, "parameters/gathered",
        [&](const Segment& s) {
          return s.row.axis == Axis::none ? 0 : static_cast<std::size_t>(s.world) * s.gather_bytes();
        },
        [](Segment& s, std::uint8_t* at) { (s.row.decoded() ? s.stored : s.copy) = at; });
  }
  reserve_decoded(all, arena);
  const auto place_transposed = [&](const std::vector<int>& slot, bool at_use_only) {
    place_in_slots(
        all, slot, arena, "parameters/transposed",
        [&](const Segment& s) {
          const bool placed = transposed_at_use(s) || s.row.axis != Axis::none;
          return placed && transposed_at_use(s) == at_use_only ? transposed_bytes(s, arena) : 0;
        },
        [](Segment& s, std::uint8_t* at) { s.transposed = at; });
  };
  place_transposed(all.at_use_slot, true);
  if (policy.shard_parameters && !at_use) place_transposed(all.copy_slot, false);
}

/// Returns whether a reduction of this segment's gradients rounds them.
bool rounds(const Segment& s, const Options& options) {
  const comm::Wire wire = reduce_wire(*s.spec, options);
  return wire != comm::Wire::f32 && !(wire == comm::Wire::bf16 && s.gradient.dtype == DType::bf16);
}

/// Reserves the gradient sums that a step measures and updates with. Without sharding groups, `sum` is this
/// rank's whole slice.
void reserve_sums_of_slice(Segment& s, Arena& arena, const Policy& policy, bool deterministic) {
  if (!policy.reduce_each && !policy.shard_gradients) {
    // After the last micro-batch, the gradient buffers contain the sums.
    s.sum = s.gradient.from(s.own);
    s.total = policy.shard_state ? s.sum : s.gradient;
    return;
  }
  s.sum.dtype = deterministic ? DType::f32 : s.gradient.dtype;
  const bool alone = s.slice == s.padded;
  if (alone || policy.shard_state || s.gradient.dtype == DType::f32) {
    reserve(s.sum, arena, "gradients/sums", s.slice);
    s.total = alone || policy.shard_state ? s.sum : s.gradient;
    return;
  }
  // At stage 0, every rank updates everything, and its gradient buffers are too narrow for the sums.
  s.total.dtype = s.sum.dtype;
  reserve(s.total, arena, "gradients/sums", s.padded);
  s.sum = s.total.from(s.own);
}

void reserve_sums(Segment& s, Arena& arena, const Policy& policy, bool deterministic) {
  reserve_sums_of_slice(s, arena, policy, deterministic);
  if (s.replicas > 1) s.sum = s.total.from(s.piece_begin - s.own);
}

void reserve_training(Segments& all, Arena& arena, const Policy& policy, const Options& options,
                      int tree_buffers) {
  place_in_slots(all, all.gradient_slot, arena, "gradients", gradient_bytes,
                 [](Segment& s, std::uint8_t* at) {
                   s.gradient.data = at;
                   for (std::size_t i = 0; i < s.earlier.size(); ++i)
                     s.earlier[i] = s.gradient.from(static_cast<std::int64_t>(i + 1) * s.padded);
                 });
  all.each([&](Segment& s) {
    if (!s.row.trained()) return;
    reserve_sums(s, arena, policy, options.deterministic || options.strict);
    if (options.error_feedback && s.world > 1 && rounds(s, options)) {
      s.residual = arena.reserve_as<std::uint16_t>("gradients/residuals", static_cast<std::size_t>(s.padded));
    }
    for (std::size_t i = 0; i < static_cast<std::size_t>(tree_buffers) * (1 + s.earlier.size()); ++i) {
      s.tree.push_back(arena.reserve_as<float>("gradients/tree", static_cast<std::size_t>(s.padded)));
    }
    const MemoryKind state = kind_of_state(s, arena);
    s.moments_away = state == MemoryKind::pinned;
    reserve(s.exp_avg, arena, "optimizer/exp_avg", s.state_count, state);
    reserve(s.exp_avg_sq, arena, "optimizer/exp_avg_sq", s.state_count, state);
    if (s.exp_avg.dtype != DType::u8) return;
    const auto blocks = static_cast<std::size_t>(Segment::blocks(s.state_count));
    s.exp_avg_scale = arena.reserve_as<float>("optimizer/exp_avg_scale", blocks, state);
    s.exp_avg_sq_scale = arena.reserve_as<float>("optimizer/exp_avg_sq_scale", blocks, state);
  });
}

/// The number of each stored tensor, by name.
using TensorNumbers = std::map<std::string, std::uint32_t>;

/// Numbers the tensors in the order of the layout.
TensorNumbers numbers_of(const model::ParameterLayout& layout) {
  TensorNumbers numbers;
  std::uint32_t next = 0;
  for (const model::GroupSpec& group : layout.groups) {
    for (const model::SegmentSpec& segment : group.segments) {
      for (const model::TensorSpec& tensor : segment.tensors) numbers.emplace(tensor.name, next++);
    }
  }
  return numbers;
}

/// Adds the optimizer span and the scaled runs of a tensor run.
void add_run(Segment& s, const TensorRun& run, const TensorNumbers& numbers) {
  const model::TensorSpec& tensor = s.spec->tensors[run.tensor];
  const std::vector<ScaledRun>& scaled = s.scaled[run.tensor];
  s.spans.push_back({.begin = run.begin,
                     .count = run.count,
                     .decay = tensor.decay,
                     .rate = tensor.rate,
                     .amax_index = scaled.size() == 1 ? scaled.front().scale : -1,
                     .tensor = numbers.at(tensor.name),
                     .first = tensor.before + s.state_begin + run.begin - tensor.offset});
  for (const ScaledRun& part : scaled) {
    const std::int64_t begin = std::max(run.begin, part.begin - s.state_begin);
    const std::int64_t end = std::min(run.begin + run.count, part.begin + part.count - s.state_begin);
    if (begin < end)
      s.held.push_back(
          {.begin = begin, .count = end - begin, .scale = part.scale, .part = scaled.size() > 1});
  }
}

}  // namespace

Sources sources_of(const Options& options, const comm::Place& all, const comm::Place& same_experts) {
  if (!options.deterministic && !options.strict) return {};
  // Ranks of an expert group are adjacent.
  const int count = all.size / same_experts.size;
  return {.count = count, .first = same_experts.rank * count};
}

bool may_be_narrow(const model::SegmentSpec& spec) {
  return spec.kind == model::ParameterKind::matrix && spec.used >= kNarrowFrom;
}

comm::Wire reduce_wire(const model::SegmentSpec& spec, const Options& options) {
  return may_be_narrow(spec) ? options.wire : comm::Wire::f32;
}

std::int64_t row_scale_of(const model::SegmentSpec& spec, std::size_t tensor) {
  std::int64_t begin = 0;
  for (std::size_t t = 0; t < tensor; ++t) begin += (spec.tensors[t].rows + 3) / 4 * 4;
  return begin;
}

std::vector<TensorRun> runs_within(const model::SegmentSpec& spec, std::int64_t begin, std::int64_t count) {
  std::vector<TensorRun> runs;
  for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
    const model::TensorSpec& tensor = spec.tensors[t];
    const std::int64_t from = std::max(tensor.offset, begin);
    const std::int64_t to = std::min(tensor.offset + tensor.count(), begin + count);
    if (from < to) runs.push_back({.tensor = t, .begin = from - begin, .count = to - from});
  }
  return runs;
}

namespace {

/// Returns a segment with its formats and extents, without memory.
Segment segment_of(const model::SegmentSpec& spec, const Placement& row, const Places& places,
                   const Options& options) {
  const comm::Place& place = spec.split_experts ? places.same_experts : places.all;
  Segment s;
  s.spec = &spec;
  s.row = row;
  s.rank = place.rank;
  s.world = place.size;
  if (has_replicas(options, place.size)) {
    s.world = shards_of(options, place.size);
    s.replicas = place.size / s.world;
    s.rank = place.rank % s.world;
  }
  s.padded = model::padded_count(spec, place.size);
  s.slice = s.padded / s.world;
  s.own = s.slice * s.rank;
  s.piece = s.slice / s.replicas;
  s.piece_begin = s.own + s.piece * (place.rank / s.world);
  s.dtype = row.weights;
  s.master.dtype = row.master;
  s.gradient.dtype = row.gradient;
  s.exp_avg.dtype = s.exp_avg_sq.dtype = row.moments;
  s.gather = gather_wire(s, options);
  if (row.decoded()) {
    s.nf4 = nf4_parts(spec, options.fixed.nf4, s.dtype);
    s.stored_slice = nf4_slice_bytes(s.nf4, s.world);
  }
  if (row.trained() && spec.split_experts) {
    const Sources sources = sources_of(options, places.all, places.same_experts);
    s.earlier.resize(static_cast<std::size_t>(sources.count - 1), {.dtype = row.gradient});
  }
  const bool whole = row.kept_axis() == Axis::none;
  s.state_begin = whole ? 0 : s.own;
  s.state_count = whole ? s.padded : s.slice;
  return s;
}

/// Sets the scale of each NF4 part to the scale of the run that contains it. Also sets the position of the
/// part in the transposed copy of that run.
void set_scales_of_parts(Segment& s) {
  auto part = s.nf4.begin();
  for (std::size_t t = 0; t < s.spec->tensors.size() && part != s.nf4.end(); ++t) {
    auto run = s.scaled[t].begin();
    for (std::size_t p = 0; p < s.spec->tensors[t].parts.size(); ++p, ++part) {
      if (s.scaled[t].empty()) continue;
      while (part->begin >= run->begin + run->count) ++run;
      part->scale = run->scale;
      part->flipped = run->begin + (part->begin - run->begin) / part->cols;
      part->transposed_ld = run->count / part->cols;
    }
  }
}

/// Assigns numbers to the scales of a segment's FP8 weights.
void number_scales(Segment& s, Segments& all, const Options& options) {
  std::vector<DType>& formats = s.row.trained() ? all.scale_formats : all.fixed_scale_formats;
  std::vector<std::string>& names = s.row.trained() ? all.scale_names : all.fixed_scale_names;
  for (const model::TensorSpec& tensor : s.spec->tensors) {
    s.scaled.emplace_back();
    if (!is_fp8(s.dtype) || options.recipe.rows()) continue;
    for (const model::ScaledPart& part : model::scaled_parts(tensor, options.recipe.scale_parts)) {
      s.scaled.back().push_back({.begin = tensor.offset + part.begin,
                                 .count = part.count,
                                 .scale = static_cast<std::int64_t>(names.size())});
      formats.push_back(s.dtype);
      names.push_back(part.name);
    }
  }
  set_scales_of_parts(s);
  s.nf4_runs = nf4_runs(s.nf4);
}

}  // namespace

Segments reserve_segments(const model::ParameterLayout& layout, Arena& arena, const Places& places,
                          const Options& options, const model::ParameterLayout* whole) {
  const comm::Place& place = places.all;
  const Policy policy = policy_of(options, place.size);
  const Placements table = placements_of(layout, options, place.size, places.same_experts.size);
  Segments all;
  all.rank = place.rank;
  all.world = place.size;
  const int groups = static_cast<int>(layout.groups.size());
  check(groups > 0, "a layout has groups");
  all.slots = std::max(groups, 4);
  all.gradient_slot = slots_of(groups, policy.shard_gradients);
  all.copy_slot = slots_of(groups, policy.shard_parameters);
  all.at_use_slot = slots_at_use(groups);
  all.compute = options.recipe.compute;
  const TensorNumbers numbers = numbers_of(whole != nullptr ? *whole : layout);
  for (std::size_t g = 0; g < layout.groups.size(); ++g) {
    auto& segments = all.groups.emplace_back();
    const auto first_scale = static_cast<std::int64_t>(all.scale_names.size());
    for (std::size_t i = 0; i < layout.groups[g].segments.size(); ++i) {
      const model::SegmentSpec& spec = layout.groups[g].segments[i];
      Segment s = segment_of(spec, table[g][i], places, options);
      (s.row.trained() ? all.trains : all.fixed) = true;
      number_scales(s, all, options);
      for (const TensorRun& run : runs_within(spec, s.state_begin, s.state_count)) add_run(s, run, numbers);
      segments.push_back(std::move(s));
    }
    all.group_scales.emplace_back(first_scale,
                                  static_cast<std::int64_t>(all.scale_names.size()) - first_scale);
  }
  reserve_parameters(all, arena, policy, options);
  reserve_training(all, arena, policy, options,
                   policy.tree ? sum_tree(place, options.micro_batches).buffers : 0);
  return all;
}

}  // namespace octet::store
