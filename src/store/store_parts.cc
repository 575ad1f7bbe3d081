#include "store_parts.h"

#include <utility>

#include "slices.h"

namespace octet::store {
namespace {

std::vector<model::GroupParameters> operands(const Segments& segments, const precision::ScaleSet* trained,
                                             const precision::ScaleSet* fixed) {
  std::vector<model::GroupParameters> groups;
  for (const auto& group : segments.groups) {
    auto& parameters = groups.emplace_back();
    for (const Segment& s : group) {
      const precision::ScaleSet* scales = s.row.trained() ? trained : fixed;
      auto& weights = parameters.weights.emplace_back();
      auto& parts = parameters.parts.emplace_back();
      for (std::size_t t = 0; t < s.spec->tensors.size(); ++t) {
        const model::TensorSpec& tensor = s.spec->tensors[t];
        const auto operand = [&](std::int64_t begin, std::int64_t count, const float* scale_inv) {
          return ops::Operand{.data = s.copy + s.copy_bytes(begin),
                              .transposed = s.transposed == nullptr ? nullptr : s.transposed + begin,
                              .dtype = s.dtype,
                              .rows = count / tensor.cols,
                              .cols = tensor.cols,
                              .scale_inv = scale_inv};
        };
        parts.emplace_back();
        for (const ScaledRun& run : s.scaled[t]) {
          parts.back().push_back(operand(run.begin, run.count, scales->scale_inv(run.scale)));
        }
        weights.push_back(parts.back().size() == 1 ? parts.back().front()
                                                   : operand(tensor.offset, tensor.count(), nullptr));
        if (s.row_scales != nullptr) {
          weights.back().scale_inv = s.row_scales + row_scale_of(*s.spec, t);
          weights.back().scaling = ops::Scaling::whole_rows;
        }
        if (parts.back().size() > 1) weights.back().data = weights.back().transposed = nullptr;
      }
    }
  }
  return groups;
}

}  // namespace

std::vector<comm::SharedMemory> gathered_memory(const Segments& segments) {
  std::vector<comm::SharedMemory> memory;
  const auto add = [&](void* address, std::size_t bytes) {
    if (address != nullptr && bytes > 0) memory.push_back({address, bytes});
  };
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      if (s.row.gathered()) {
        add(s.gather_buffer(), static_cast<std::size_t>(segments.world) * s.gather_bytes());
      } else if (s.total) {
        add(s.total.data, s.total.bytes(s.padded));
      }
    }
  }
  return memory;
}

ParameterStore::Parts::Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with,
                             const Options& how)
    : layout(std::move(of)),
      collectives(with),
      device(arena.device()),
      options(how),
      segments(reserve_segments(layout, arena, with.place(), how)),
      fixed(segments, arena, with, how),
      gatherer(segments, fixed.scales(), with, device, how),
      reducer(segments, with, device, how),
      updater(segments, arena, with, how),
      amaxes(with, device, how),
      parameters(operands(segments, updater.scales(), fixed.scales())),
      seen(device),
      needed(device) {
  if (with.size() > 1) with.share(gathered_memory(segments));
  expect_mirrors(arena);
}

void ParameterStore::Parts::expect_mirrors(Arena& arena) {
  std::vector<TensorSlice> saved = state_slices(segments, {.own_only = true, .moments = true});
  std::vector<TensorSlice> read = state_slices(segments, {.own_only = false, .moments = true});
  if (collectives.rank() == 0) append_scales(saved);
  append_scales(read);
  arena.expect_passing("state/saved", HostMirror::bytes_for(saved, device), MemoryKind::host);
  arena.expect_passing("state/loaded", HostMirror::bytes_for(read, device), MemoryKind::host);
}

void ParameterStore::Parts::append_scales(std::vector<TensorSlice>& slices) {
  if (updater.scales() == nullptr) return;
  for (TensorSlice& slice : updater.scales()->state()) slices.push_back(std::move(slice));
}

}  // namespace octet::store
