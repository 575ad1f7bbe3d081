// The parts of a store, shared by its steps (store.cc) and its state (store_state.cc).
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

/// Returns the memory that gathers, and at stage 0 gradient sums, are written to.
std::vector<comm::SharedMemory> gathered_memory(const Segments& segments);

struct ParameterStore::Parts {
  Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with, const Options& how);
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
  HostMirror seen;    ///< copies returned by owned_slices and gradient_slices
  HostMirror needed;  ///< copies returned by needed_slices, until refresh_copies sends them
  std::int64_t optimizer_steps = 0;
  int exceptions_at_start = std::uncaught_exceptions();
  bool stepping = false;  ///< between begin_step and finish
  bool finished = false;  ///< between finish and collect
  bool updating = false;  ///< the finish to collect updates
};

}  // namespace octet::store
