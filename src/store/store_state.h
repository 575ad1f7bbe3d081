// The state of a store between steps, as named slices: initial values, and what checkpoints hold.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "octet/base/tensor_slice.h"
#include "octet/device/device.h"
#include "octet/device/host_copies.h"
#include "octet/store/placement.h"
#include "octet/store/store.h"
#include "segments.h"
#include "updater.h"

namespace octet::store {

/// Appends elements [begin, begin + count) of a segment as slices of its Hugging Face tensors, without
/// padding. `data` points to element `begin`.
struct SliceRange {
  std::int64_t begin = 0;
  std::int64_t count = 0;
  Array data;
};
void append_slices(const model::SegmentSpec& spec, const SliceRange& range, const std::string& prefix,
                   std::vector<TensorSlice>& slices);

/// Selects state slices of trained segments: parameters, and with `moments` also exp_avg/…, exp_avg_sq/… and
/// this rank's residuals/…. `own_only` selects this rank's slices instead of all that it holds. Scales of
/// 8-bit moments have the name of the stored tensor, because their blocks do not follow Hugging Face tensors:
/// "exp_avg_scale/layers.0.qkv", one per 128 elements.
struct SliceChoice {
  bool own_only = false;
  bool moments = false;
  bool whole = false;  ///< whole tensors of all ranks instead, without data
};
std::vector<TensorSlice> state_slices(Segments& segments, const SliceChoice& choice);

/// Returns the masters of one segment that this rank holds.
std::vector<TensorSlice> parameter_slices(const Segment& segment);

/// Returns this rank's slices of the gradient sums.
std::vector<TensorSlice> sum_slices(Segments& segments);

/// Masters, moments, FP8 scales and the count of updates of the trained segments on this rank. Slices are in
/// host memory. If the host cannot address the device memory, they are copies. ParameterStore describes the
/// names of the slices, and how long copies are valid. Not thread-safe.
class StoreState {
 public:
  using Slices = std::vector<TensorSlice>;
  using Fill = std::function<void(const Slices&)>;

  /// All arguments except `axes` must outlive this object.
  StoreState(Segments& segments, Updater& updater, const Axes& axes, const ExpertAxis& experts,
             Device& device, const Options& options);

  /// Registers with the arena the host memory for copies when state is saved or loaded.
  void expect_mirrors(Arena& arena);
  /// Fills the masters with fp32 values, rounded to nearest in the storage format. `fill` is called with a
  /// part of the slices at a time.
  void fill_masters(const Fill& fill);

  /// See the functions of ParameterStore: owned_slices, owned_places, needed_slices, state_tensors and
  /// gradient_slices.
  Slices owned(const Slices& others);
  SnapshotSources owned_places(const Slices& others);
  Slices needed(const Slices& others);
  Slices tensors(const Slices& others);
  Slices gradients();
  /// Writes the copies of needed() to the device.
  void send_needed() { needed_.send(); }
  /// Frees the copies that were read. Call it before a step.
  void clear_copies() { seen_.clear(); }

  /// The number of updates, without skipped steps.
  std::int64_t optimizer_steps() const { return optimizer_steps_; }
  void count_update() { ++optimizer_steps_; }

 private:
  /// Fills the masters of a segment with fp32 values, rounded to nearest in the storage format.
  void fill_rounded(Segment& segment, const Fill& fill);
  /// Appends the state of FP8 weights: what this rank saves, what it holds, or whole tensors without data.
  enum class Scope { own, held, whole };
  void append_scales(Slices& slices, Scope scope);
  void append_split_scales(const TensorSlice& held, Scope scope, Slices& slices);
  TensorSlice step_slice();
  /// Calls `use` with the segments of a rank that has all experts, without memory.
  template <typename Use>
  auto with_all_experts(Use&& use) {
    const std::unique_ptr<Device> dry = make_dry_device({.stands_for = device_.stands_for()});
    Arena arena(*dry);
    Segments all = reserve_segments(experts_.all, arena, axes_.places(), options_);
    return use(all);
  }
  /// Returns all tensors of masters and moments, with the experts of all ranks, whole and without data.
  Slices whole_tensors();

  Segments& segments_;
  Updater& updater_;
  Axes axes_;
  const ExpertAxis& experts_;
  Device& device_;
  const Options& options_;
  std::map<std::string, std::int64_t> all_scales_;  ///< with split experts: the scales of all ranks, by name
  HostMirror seen_;                                 ///< copies returned by owned() and gradients()
  HostMirror needed_;                               ///< copies returned by needed(), until send_needed()
  std::int64_t optimizer_steps_ = 0;
};

}  // namespace octet::store
