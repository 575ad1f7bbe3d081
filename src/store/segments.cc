#include "segments.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/ops/gemm.h"
#include "sum_tree.h"

namespace octet::store {
namespace {

DType copy_dtype(const model::SegmentSpec& spec, const precision::Recipe& recipe) {
  if (spec.kind == model::ParameterKind::vector) return DType::f32;
  // Weights scaled in blocks become FP8 where they are read.
  if (spec.fp8 && recipe.fp8() && !recipe.blocks()) return recipe.forward_format;
  return recipe.compute;
}

/// The format in which a segment is gathered, if it is narrower than what lies there.
comm::Wire gather_wire(const Segment& s, const Options& options) {
  const bool narrower = options.gather_wire == comm::Wire::bf16 ? s.dtype == DType::f32 : !is_fp8(s.dtype);
  return narrower && may_be_narrow(*s.spec) ? options.gather_wire : comm::Wire::f32;
}

/// Which groups share buffers: the embedding and the head have their own, since they may be in use beside
/// any block; blocks take turns on two, one in use and one being filled or drained.
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

/// What is made at use is made on the stream that uses it: one slot serves all blocks.
std::vector<int> slots_at_use(int groups) {
  std::vector<int> slots;
  for (int g = 0; g < groups; ++g) slots.push_back(std::min(shared_slot(g, groups), 2));
  return slots;
}

std::int64_t gradient_bytes(const Segment& s) {
  return s.trained ? static_cast<std::int64_t>(s.gradient.bytes(s.padded)) : 0;
}

/// What holds only matrices in narrow formats.
void choose_formats(Segment& s, const Options& options) {
  s.dtype = copy_dtype(*s.spec, options.recipe);
  if (s.spec->kind == model::ParameterKind::vector) return;
  s.master.dtype = options.storage.parameters;
  s.gradient.dtype = options.storage.gradients;
  s.exp_avg.dtype = s.exp_avg_sq.dtype = options.storage.moments;
}

void reserve(Array& array, Arena& arena, const char* name, std::int64_t count) {
  array.data = arena.reserve(name, array.bytes(count));
}

/// Lays the segments of each group one behind the other in the buffer of its slot.
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

/// Bytes of the transposed copies of a segment's matrices, which only a backward pass reads.
std::size_t transposed_bytes(const Segment& s, const Arena& arena, const Options& options) {
  const bool read = options.training && is_fp8(s.dtype) && ops::gemm_needs_transposed_fp8(arena.device());
  return read ? s.copy_bytes(s.padded) : 0;
}

void reserve_parameters(Segments& all, Arena& arena, const Policy& policy, const Options& options) {
  const bool at_use = options.transposed == TransposedWeights::at_use;
  all.each([&](Segment& s) {
    if (!policy.shard_parameters) {
      if (s.gathered_narrow()) {
        s.copy = arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.padded));
        reserve(s.master, arena, "parameters/master", s.state_count);
        s.shard = s.master_is_copy()
                      ? static_cast<std::uint8_t*>(s.master.data)
                      : arena.reserve_as<std::uint8_t>("parameters/shards", s.copy_bytes(s.slice));
        return;
      }
      if (s.master_is_copy()) {
        const char* name = policy.shard_state ? "parameters/copies" : "parameters/master";
        s.copy = arena.reserve_as<std::uint8_t>(name, s.copy_bytes(s.padded));
        s.master.data = s.copy + s.copy_bytes(s.state_begin);
      } else {
        s.copy = arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.padded));
        reserve(s.master, arena, "parameters/master", s.state_count);
      }
      s.shard = s.copy + s.copy_bytes(s.own);
      if (at_use) return;
      s.transposed =
          arena.reserve_as<std::uint8_t>("parameters/transposed", transposed_bytes(s, arena, options));
      return;
    }
    reserve(s.master, arena, "parameters/master", s.state_count);
    s.shard = s.master_is_copy() ? static_cast<std::uint8_t*>(s.master.data)
                                 : arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.slice));
  });
  if (policy.shard_parameters) {
    place_in_slots(
        all, all.copy_slot, arena, "parameters/gathered",
        [](const Segment& s) { return s.copy_bytes(s.padded); },
        [](Segment& s, std::uint8_t* at) { s.copy = at; });
  }
  if (!policy.shard_parameters && !at_use) return;
  place_in_slots(
      all, at_use ? all.transposed_slot : all.copy_slot, arena, "parameters/transposed",
      [&](const Segment& s) { return transposed_bytes(s, arena, options); },
      [](Segment& s, std::uint8_t* at) { s.transposed = at; });
}

/// Whether a reduction of this segment's gradients rounds them.
bool rounds(const Segment& s, const Options& options) {
  const comm::Wire wire = reduce_wire(*s.spec, options);
  return wire != comm::Wire::f32 && !(wire == comm::Wire::bf16 && s.gradient.dtype == DType::bf16);
}

/// Where the sums of gradients lie that a step measures and updates with.
void reserve_sums(Segment& s, Arena& arena, const Policy& policy, bool deterministic) {
  if (!policy.reduce_each && !policy.shard_gradients) {
    // The last micro-batch leaves them in the gradient buffers.
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
  // Every rank updates everything, and its gradient buffers are too narrow for the sums.
  s.total.dtype = s.sum.dtype;
  reserve(s.total, arena, "gradients/sums", s.padded);
  s.sum = s.total.from(s.own);
}

void reserve_training(Segments& all, Arena& arena, const Policy& policy, const Options& options,
                      int tree_buffers) {
  place_in_slots(all, all.gradient_slot, arena, "gradients", gradient_bytes,
                 [](Segment& s, std::uint8_t* at) { s.gradient.data = at; });
  all.each([&](Segment& s) {
    if (!s.trained) return;
    reserve_sums(s, arena, policy, options.deterministic || options.strict);
    if (options.error_feedback && all.world > 1 && rounds(s, options)) {
      s.residual = arena.reserve_as<std::uint16_t>("gradients/residuals", static_cast<std::size_t>(s.padded));
    }
    for (int i = 0; i < tree_buffers; ++i) {
      s.tree.push_back(arena.reserve_as<float>("gradients/tree", static_cast<std::size_t>(s.padded)));
    }
    reserve(s.exp_avg, arena, "optimizer/exp_avg", s.state_count);
    reserve(s.exp_avg_sq, arena, "optimizer/exp_avg_sq", s.state_count);
    if (s.exp_avg.dtype != DType::u8) return;
    const auto blocks = static_cast<std::size_t>(Segment::blocks(s.state_count));
    s.exp_avg_scale = arena.reserve_as<float>("optimizer/exp_avg_scale", blocks);
    s.exp_avg_sq_scale = arena.reserve_as<float>("optimizer/exp_avg_sq_scale", blocks);
  });
}

/// What the optimizer and the scales need to know of a run of a tensor. `tensors` are in segments before.
void add_run(Segment& s, const Run& run, std::uint32_t tensors) {
  const model::TensorSpec& tensor = s.spec->tensors[run.tensor];
  const std::vector<ScaledRun>& scaled = s.scaled[run.tensor];
  s.spans.push_back({.begin = run.begin,
                     .count = run.count,
                     .decay = tensor.decay,
                     .amax_index = scaled.size() == 1 ? scaled.front().scale : -1,
                     .tensor = tensors + static_cast<std::uint32_t>(run.tensor),
                     .first = s.state_begin + run.begin - tensor.offset});
  for (const ScaledRun& part : scaled) {
    const std::int64_t begin = std::max(run.begin, part.begin - s.state_begin);
    const std::int64_t end = std::min(run.begin + run.count, part.begin + part.count - s.state_begin);
    if (begin < end)
      s.held.push_back(
          {.begin = begin, .count = end - begin, .scale = part.scale, .part = scaled.size() > 1});
  }
}

}  // namespace

bool may_be_narrow(const model::SegmentSpec& spec) {
  return spec.kind == model::ParameterKind::matrix && spec.used >= kNarrowFrom;
}

comm::Wire reduce_wire(const model::SegmentSpec& spec, const Options& options) {
  return may_be_narrow(spec) ? options.wire : comm::Wire::f32;
}

std::vector<Run> runs_within(const model::SegmentSpec& spec, std::int64_t begin, std::int64_t count) {
  std::vector<Run> runs;
  for (std::size_t t = 0; t < spec.tensors.size(); ++t) {
    const model::TensorSpec& tensor = spec.tensors[t];
    const std::int64_t from = std::max(tensor.offset, begin);
    const std::int64_t to = std::min(tensor.offset + tensor.count(), begin + count);
    if (from < to) runs.push_back({.tensor = t, .begin = from - begin, .count = to - from});
  }
  return runs;
}

Segments reserve_segments(const model::ParameterLayout& layout, Arena& arena, const comm::Place& place,
                          const Options& options) {
  const Policy policy = policy_of(options, place.size);
  Segments all;
  all.rank = place.rank;
  all.world = place.size;
  all.shards_state = policy.shard_state;
  const int groups = static_cast<int>(layout.groups.size());
  check(groups > 0, "a layout has groups");
  all.slots = std::max(groups, 4);
  all.gradient_slot = slots_of(groups, policy.shard_gradients);
  all.copy_slot = slots_of(groups, policy.shard_parameters);
  all.transposed_slot = slots_at_use(groups);
  std::uint32_t tensors = 0;  // in the order of the layout, whatever this rank holds
  for (const model::GroupSpec& group : layout.groups) {
    auto& segments = all.groups.emplace_back();
    const auto first_scale = static_cast<std::int64_t>(all.scale_names.size());
    for (const model::SegmentSpec& spec : group.segments) {
      Segment s;
      s.spec = &spec;
      s.padded = model::padded_count(spec, place.size);
      s.slice = s.padded / place.size;
      s.own = s.slice * place.rank;
      s.trained = spec.trainable && options.training;
      choose_formats(s, options);
      if (policy.shard_state) s.gather = gather_wire(s, options);
      s.state_begin = policy.shard_state ? s.own : 0;
      s.state_count = policy.shard_state ? s.slice : s.padded;
      for (const model::TensorSpec& tensor : spec.tensors) {
        s.scaled.emplace_back();
        if (!is_fp8(s.dtype)) continue;
        for (const model::ScaledPart& part : model::scaled_parts(tensor, options.recipe.scale_parts)) {
          s.scaled.back().push_back({.begin = tensor.offset + part.begin,
                                     .count = part.count,
                                     .scale = static_cast<std::int64_t>(all.scale_names.size())});
          all.scale_formats.push_back(s.dtype);
          all.scale_names.push_back(part.name);
        }
      }
      for (const Run& run : runs_within(spec, s.state_begin, s.state_count)) add_run(s, run, tensors);
      tensors += static_cast<std::uint32_t>(spec.tensors.size());
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
