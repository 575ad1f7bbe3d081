#include "segments.h"

#include <algorithm>

#include "octet/base/error.h"
#include "octet/ops/gemm.h"

namespace octet::zero {
namespace {

DType copy_dtype(const model::SegmentSpec& spec, const precision::Recipe& recipe) {
  if (spec.kind == model::ParameterKind::vector) return DType::f32;
  if (spec.fp8 && recipe.fp8()) return recipe.forward_format;
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

std::int64_t gradient_bytes(const Segment& s) {
  return s.trained ? s.padded * static_cast<std::int64_t>(sizeof(float)) : 0;
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

/// Bytes of the transposed copies of a segment's matrices.
std::size_t transposed_bytes(const Segment& s, const Arena& arena) {
  return is_fp8(s.dtype) && ops::gemm_needs_transposed_fp8(arena.device()) ? s.copy_bytes(s.padded) : 0;
}

void reserve_parameters(Segments& all, Arena& arena, const Policy& policy) {
  all.each([&](Segment& s) {
    const auto state = static_cast<std::size_t>(s.state_count);
    if (!policy.shard_parameters) {
      if (s.gathered_narrow()) {
        s.copy = arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.padded));
        s.master = arena.reserve_as<float>("parameters/master", state);
        s.shard = s.master_is_copy()
                      ? reinterpret_cast<std::uint8_t*>(s.master)
                      : arena.reserve_as<std::uint8_t>("parameters/shards", s.copy_bytes(s.slice));
        return;
      }
      if (s.master_is_copy()) {
        const char* name = policy.shard_state ? "parameters/copies" : "parameters/master";
        float* whole = arena.reserve_as<float>(name, static_cast<std::size_t>(s.padded));
        s.copy = reinterpret_cast<std::uint8_t*>(whole);
        s.master = whole + s.state_begin;
      } else {
        s.copy = arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.padded));
        s.master = arena.reserve_as<float>("parameters/master", state);
      }
      s.shard = s.copy + s.copy_bytes(s.own);
      s.transposed = arena.reserve_as<std::uint8_t>("parameters/transposed", transposed_bytes(s, arena));
      return;
    }
    s.master = arena.reserve_as<float>("parameters/master", state);
    s.shard = s.master_is_copy() ? reinterpret_cast<std::uint8_t*>(s.master)
                                 : arena.reserve_as<std::uint8_t>("parameters/copies", s.copy_bytes(s.slice));
  });
  if (!policy.shard_parameters) return;
  place_in_slots(
      all, all.copy_slot, arena, "parameters/gathered",
      [](const Segment& s) { return s.copy_bytes(s.padded); },
      [](Segment& s, std::uint8_t* at) { s.copy = at; });
  place_in_slots(
      all, all.copy_slot, arena, "parameters/transposed",
      [&](const Segment& s) { return transposed_bytes(s, arena); },
      [](Segment& s, std::uint8_t* at) { s.transposed = at; });
}

void reserve_training(Segments& all, Arena& arena, const Policy& policy) {
  place_in_slots(all, all.gradient_slot, arena, "gradients", gradient_bytes,
                 [](Segment& s, std::uint8_t* at) { s.gradient = reinterpret_cast<float*>(at); });
  all.each([&](Segment& s) {
    if (!s.trained) return;
    s.sum = policy.reduce_each ? arena.reserve_as<float>("gradients/sums", static_cast<std::size_t>(s.slice))
                               : s.gradient + s.own;
    s.exp_avg = arena.reserve_as<float>("optimizer/exp_avg", static_cast<std::size_t>(s.state_count));
    s.exp_avg_sq = arena.reserve_as<float>("optimizer/exp_avg_sq", static_cast<std::size_t>(s.state_count));
  });
}

}  // namespace

bool may_be_narrow(const model::SegmentSpec& spec) {
  return spec.kind == model::ParameterKind::matrix && spec.used >= kNarrowFrom;
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
  const int groups = static_cast<int>(layout.groups.size());
  check(groups > 0, "a layout has groups");
  all.slots = std::max(groups, 4);
  all.gradient_slot = slots_of(groups, policy.shard_gradients);
  all.copy_slot = slots_of(groups, policy.shard_parameters);
  for (const model::GroupSpec& group : layout.groups) {
    auto& segments = all.groups.emplace_back();
    for (const model::SegmentSpec& spec : group.segments) {
      Segment s;
      s.spec = &spec;
      s.padded = model::padded_count(spec, place.size);
      s.slice = s.padded / place.size;
      s.own = s.slice * place.rank;
      s.trained = spec.trainable && options.training;
      s.dtype = copy_dtype(spec, options.recipe);
      if (policy.shard_state) s.gather = gather_wire(s, options);
      s.state_begin = policy.shard_state ? s.own : 0;
      s.state_count = policy.shard_state ? s.slice : s.padded;
      for (const model::TensorSpec& tensor : spec.tensors) {
        if (!is_fp8(s.dtype)) {
          s.scales.push_back(-1);
          continue;
        }
        s.scales.push_back(static_cast<std::int64_t>(all.scale_names.size()));
        all.scale_formats.push_back(s.dtype);
        all.scale_names.push_back(tensor.name);
      }
      for (const Run& run : runs_within(spec, s.state_begin, s.state_count)) {
        s.spans.push_back({.begin = run.begin,
                           .count = run.count,
                           .decay = spec.tensors[run.tensor].decay,
                           .amax_index = s.scales[run.tensor]});
      }
      segments.push_back(std::move(s));
    }
  }
  reserve_parameters(all, arena, policy);
  reserve_training(all, arena, policy);
  return all;
}

}  // namespace octet::zero
