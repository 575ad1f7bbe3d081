// The parts of a store that Hashes reads.
#pragma once

#include "fixed.h"
#include "gatherer.h"
#include "octet/store/hashes.h"
#include "reducer.h"
#include "segments.h"
#include "updater.h"

namespace octet::store {

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
