// What a store is made of, which its steps (store.cc) and its state (store_state.cc) share.
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include "activation_amaxes.h"
#include "fixed.h"
#include "gatherer.h"
#include "octet/device/host_mirror.h"
#include "octet/store/store.h"
#include "reducer.h"
#include "segments.h"
#include "updater.h"

namespace octet::store {

/// Where gathers and the sums of stage 0 go.
std::vector<comm::SharedMemory> gathered_memory(const Segments& segments);

struct ParameterStore::Parts {
  Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with, const Options& how);
  /// What passes through the host's memory when the state is saved and loaded.
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
  /// Fills the masters of a segment with fp32 values, rounded to nearest to what they are stored in.
  void fill_rounded(Segment& segment, const std::function<void(const std::vector<TensorSlice>&)>& fill);
  void append_scales(std::vector<TensorSlice>& slices);

  model::ParameterLayout layout;
  comm::Collectives& collectives;
  Device& device;
  Options options;
  Segments segments;
  Fixed fixed;
  Gatherer gatherer;
  Reducer reducer;
  Updater updater;
  ActivationAmaxes amaxes;
  std::vector<model::GroupParameters> parameters;
  HostMirror seen;    ///< what owned_slices and gradient_slices gave
  HostMirror needed;  ///< what needed_slices gave, until refresh_copies takes it
  std::int64_t optimizer_steps = 0;
  int exceptions_at_start = std::uncaught_exceptions();
  bool stepping = false;  ///< between begin_step and finish
  bool finished = false;  ///< between finish and collect
  bool updating = false;  ///< the finish that is to be collected updates
};

}  // namespace octet::store
