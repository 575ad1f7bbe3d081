#include "store_parts.h"

#include <iterator>
#include <utility>

#include "octet/base/error.h"
#include "slices.h"

namespace octet::store {
namespace {

constexpr int kForward = 0, kGradients = 1;

}  // namespace

ActivationAmaxes::ActivationAmaxes(comm::Collectives& collectives, Device& device, const Options& options)
    : collectives_(collectives),
      delayed_(options.recipe.kind == precision::RecipeKind::delayed),
      overlap_(options.overlap),
      raised_(device.make_event()),
      forward_reduced_(device.make_event()),
      gradients_updated_(device.make_event()) {}

void ActivationAmaxes::begin(precision::ScaleSet* scales) {
  scales_ = delayed_ && scales != nullptr && scales->count() > 0 ? scales : nullptr;
  left_ = false;
}

void ActivationAmaxes::reduce(int part, const char* name, Stream& compute) {
  float* const amaxes = scales_->set_aside(compute, part);
  compute.record(*raised_);
  Stream& stream = collectives_.gather_stream();
  stream.wait(*raised_);
  collectives_.all_reduce_max(stream, name, amaxes, scales_->count());
}

void ActivationAmaxes::blocks_done(Stream& compute) {
  check(!left_, "the blocks of a micro-batch are done once");
  left_ = true;
  if (scales_ == nullptr || collectives_.size() == 1) return;
  reduce(kForward, "amaxes of inputs", compute);
  collectives_.gather_stream().record(*forward_reduced_);
  if (!overlap_) compute.wait(*forward_reduced_);
  compute.wait(*gradients_updated_);  // of the previous micro-batch
}

void ActivationAmaxes::end(Stream& compute) {
  if (scales_ == nullptr) return;
  check(left_, "a micro-batch says that its blocks are done");
  if (collectives_.size() == 1) return scales_->update(compute);
  compute.wait(*forward_reduced_);
  scales_->update_from(compute, kForward);
  reduce(kGradients, "amaxes of gradients", compute);
  Stream& stream = collectives_.gather_stream();
  scales_->update_from(stream, kGradients);
  stream.record(*gradients_updated_);
  if (!overlap_) compute.wait(*gradients_updated_);
}

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

std::vector<comm::SharedMemory> gathered_memory(const Segments& segments, const Axes& axes,
                                                const comm::Collectives& collectives) {
  std::vector<comm::SharedMemory> memory;
  const auto add = [&](void* address, std::size_t bytes) {
    if (address != nullptr && bytes > 0) memory.push_back({address, bytes});
  };
  for (const auto& group : segments.groups) {
    for (const Segment& s : group) {
      if (&axes.of(s) != &collectives) continue;
      if (s.row.gathered()) {
        add(s.gather_buffer(), static_cast<std::size_t>(s.world) * s.gather_bytes());
      } else if (s.total) {
        add(s.total.data, s.total.bytes(s.padded));
      }
    }
  }
  return memory;
}

ParameterStore::Parts::Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with,
                             const Options& how, ExpertAxis shared)
    : layout(std::move(of)),
      collectives(with),
      experts(std::move(shared)),
      axes{with, experts.same_experts != nullptr ? *experts.same_experts : with},
      device(arena.device()),
      options(how),
      segments(reserve_segments(layout, arena, axes.places(), how, axes.split() ? &experts.all : nullptr)),
      fixed(segments, arena, axes, how),
      gatherer(segments, fixed.scales(), axes, device, how),
      reducer(segments, axes, device, how),
      updater(segments, arena, axes, how),
      amaxes(with, device, how),
      parameters(operands(segments, updater.scales(), fixed.scales())),
      seen(device),
      needed(device) {
  if (axes.split()) {
    with_all_experts([&](Segments& all) {
      for (const std::string& name : all.scale_names) all_scales.emplace(name, std::ssize(all_scales));
    });
  }
  axes.each([&](comm::Collectives& one) {
    if (one.size() > 1) one.share(gathered_memory(segments, axes, one));
  });
  expect_mirrors(arena);
}

void ParameterStore::Parts::expect_mirrors(Arena& arena) {
  std::vector<TensorSlice> saved = state_slices(segments, {.own_only = true, .moments = true});
  std::vector<TensorSlice> read = state_slices(segments, {.own_only = false, .moments = true});
  append_scales(saved, Scope::own);
  append_scales(read, Scope::held);
  arena.expect_passing("state/saved", HostMirror::bytes_for(saved, device), MemoryKind::host);
  arena.expect_passing("state/loaded", HostMirror::bytes_for(read, device), MemoryKind::host);
}

void ParameterStore::Parts::append_scales(std::vector<TensorSlice>& slices, Scope scope) {
  if (updater.scales() == nullptr) return;
  for (TensorSlice& slice : updater.scales()->state()) {
    if (axes.split()) {
      append_split_scales(slice, scope, slices);
    } else if (scope != Scope::own || collectives.rank() == 0) {
      slices.push_back(std::move(slice));
    }
  }
}

// The last dimension of the state has one element per scale. Checkpoints have the scales of all ranks.
void ParameterStore::Parts::append_split_scales(const TensorSlice& held, Scope scope,
                                                std::vector<TensorSlice>& slices) {
  const std::int64_t own = std::ssize(segments.scale_names), all = std::ssize(all_scales);
  TensorSlice slice = held;
  slice.shape.back() = all;
  const std::int64_t rows = held.count / own;
  if (scope == Scope::whole) {
    slice.count = rows * all;
    return slices.push_back(std::move(slice));
  }
  axes.each([&](comm::Collectives& one) {
    if (scope == Scope::own && one.rank() != 0) return;
    each_run_of_scales(segments, axes, one, true, [&](std::int64_t first, std::int64_t count) {
      for (std::int64_t i = first; i < first + count; ++i) {
        const std::int64_t at = all_scales.at(segments.scale_names[static_cast<std::size_t>(i)]);
        for (std::int64_t row = 0; row < rows; ++row) {
          slice.begin = row * all + at;
          slice.count = 1;
          slice.data = static_cast<float*>(held.data) + row * own + i;
          slices.push_back(slice);
        }
      }
    });
  });
}

std::vector<TensorSlice> ParameterStore::Parts::whole_tensors() {
  const SliceChoice choice{.moments = true, .whole = true};
  if (!axes.split()) return state_slices(segments, choice);
  return with_all_experts([&](Segments& all) { return state_slices(all, choice); });
}

}  // namespace octet::store
