// The parts of a store, shared by store.cc and hashes.cc.
#pragma once

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fixed.h"
#include "gatherer.h"
#include "octet/comm/collectives.h"
#include "octet/device/host_copies.h"
#include "octet/precision/scaling.h"
#include "octet/store/hashes.h"
#include "octet/store/store.h"
#include "octet/store/store_options.h"
#include "reducer.h"
#include "segments.h"
#include "updater.h"

namespace octet::store {

/// Reduces the amaxes of activations and output gradients over the ranks, for delayed scaling, overlapped
/// with compute.
///
/// The reduction of forward amaxes starts when the last block is enqueued. Its result is needed when the
/// micro-batch ends, because recomputation and the backward GEMMs read the old scales until then. The
/// reduction of gradient amaxes starts when the micro-batch ends. Its result is needed when the next backward
/// pass begins. So compute does not wait for the host of another rank. All ranks must make the same calls, so
/// that the collectives of the gather queue match.
class ActivationAmaxes {
 public:
  ActivationAmaxes(comm::Collectives& collectives, Device& device, const Options& options);

  /// Begins a micro-batch. Null: there are no scales.
  void begin(precision::ScaleSet* scales);
  /// Called inside a micro-batch, before the head is acquired.
  void blocks_done(Stream& compute);
  /// Called when the whole micro-batch is enqueued.
  void end(Stream& compute);

 private:
  /// Reduces the amaxes raised on `compute` so far by MAX over the ranks, on the gather queue.
  void reduce(int part, const char* name, Stream& compute);

  comm::Collectives& collectives_;
  bool delayed_;
  bool overlap_;
  precision::ScaleSet* scales_ = nullptr;
  bool left_ = true;  ///< blocks_done() was called in this micro-batch
  std::unique_ptr<Event> raised_, forward_reduced_, gradients_updated_;
};

/// Returns the memory that gathers of `collectives`, and at stage 0 gradient sums, are written to.
std::vector<comm::SharedMemory> gathered_memory(const Segments& segments, const Axes& axes,
                                                const comm::Collectives& collectives);

struct ParameterStore::Parts {
  Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with, const Options& how,
        ExpertAxis shared);
  /// Registers with the arena the host memory for copies when state is saved or loaded.
  void expect_mirrors(Arena& arena);

  int groups() const { return static_cast<int>(layout.groups.size()); }
  TensorSlice step_slice() {
    return {.name = "optimizer/step",
            .dtype = DType::i64,
            .shape = {1},
            .begin = 0,
            .count = 1,
            .data = &optimizer_steps};
  }
  /// Fills the masters of a segment with fp32 values, rounded to nearest in the storage format.
  void fill_rounded(Segment& segment, const std::function<void(const std::vector<TensorSlice>&)>& fill);
  /// Appends the state of FP8 weights: what this rank saves, what it holds, or whole tensors without data.
  enum class Scope { own, held, whole };
  void append_scales(std::vector<TensorSlice>& slices, Scope scope);
  void append_split_scales(const TensorSlice& held, Scope scope, std::vector<TensorSlice>& slices);
  /// Calls `use` with the segments of a rank that has all experts, without memory.
  template <typename Use>
  auto with_all_experts(Use&& use) {
    const std::unique_ptr<Device> dry = make_dry_device({.stands_for = device.stands_for()});
    Arena arena(*dry);
    Segments all = reserve_segments(experts.all, arena, axes.places(), options);
    return use(all);
  }
  /// Returns all tensors of masters and moments, with the experts of all ranks, whole and without data.
  std::vector<TensorSlice> whole_tensors();

  model::ParameterLayout layout;
  comm::Collectives& collectives;
  ExpertAxis experts;
  Axes axes;
  Device& device;
  Options options;
  Segments segments;
  Fixed fixed;
  Gatherer gatherer;
  Reducer reducer;
  Updater updater;
  ActivationAmaxes amaxes;
  std::vector<model::GroupParameters> parameters;
  std::map<std::string, std::int64_t> all_scales;  ///< with split experts: the scales of all ranks, by name
  HostMirror seen;                                 ///< copies returned by owned_slices and gradient_slices
  HostMirror needed;  ///< copies returned by needed_slices, until refresh_copies sends them
  std::int64_t optimizer_steps = 0;
  int exceptions_at_start = std::uncaught_exceptions();
  bool stepping = false;  ///< between begin_step and finish
  bool finished = false;  ///< between finish and collect
  bool updating = false;  ///< the finish to collect updates
};

// The parts of a store that Hashes reads.

struct Hashes::Inside {
  ParameterStore& store;
  const model::ParameterLayout& layout;
  const std::vector<model::GroupParameters>& parameters;
  Segments& segments;
  const Fixed& fixed;
  Gatherer& gatherer;
  Reducer& reducer;
  Updater& updater;
  Device& device;
  Policy policy;
  bool keeps_transposed;  ///< transposed copies are made with the weights, not at use
};

}  // namespace octet::store
