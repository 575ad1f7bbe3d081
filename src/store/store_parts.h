// The parts of a store, shared by store.cc and hashes.cc.
#pragma once

#include <exception>
#include <vector>

#include "activation_amaxes.h"
#include "fixed.h"
#include "gatherer.h"
#include "octet/comm/collectives.h"
#include "octet/store/placement.h"
#include "octet/store/store.h"
#include "reducer.h"
#include "segments.h"
#include "store_state.h"
#include "updater.h"

namespace octet::store {

struct ParameterStore::Parts {
  Parts(model::ParameterLayout of, Arena& arena, comm::Collectives& with, const Options& how,
        ExpertAxis shared, const GroupAxes& groups);

  int groups() const { return static_cast<int>(layout.groups.size()); }

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
  StoreState state;
  int exceptions_at_start = std::uncaught_exceptions();
  bool stepping = false;  ///< between begin_step and finish
  bool finished = false;  ///< between finish and collect
  bool updating = false;  ///< the finish to collect updates
};

}  // namespace octet::store
