// Helpers for layers that return their operations.
#pragma once

#include <vector>

#include "octet/model/work.h"

namespace octet::model {

/// A kernel of the forward pass that reads and writes `values` values of the compute dtype.
inline Operation moves(OperationKind kind, double values, const Repeats& again = {}) {
  return {.kind = kind, .values = values, .again = again};
}
/// A kernel of the backward pass that reads and writes `values` values of the compute dtype.
inline Operation moves_back(OperationKind kind, double values) {
  return {.kind = kind, .backward = true, .values = values};
}

inline void append(std::vector<Operation>& all, std::vector<Operation> more) {
  for (Operation& one : more) all.push_back(std::move(one));
}

}  // namespace octet::model
