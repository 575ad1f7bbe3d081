// How layers state their work.
#pragma once

#include <vector>

#include "octet/model/work.h"

namespace octet::model {

/// A kernel of the forward pass that reads and writes `values` values of the compute dtype.
inline Operation moves(OperationKind kind, double values, const Repeats& again = {}) {
  return {.kind = kind, .values = values, .again = again};
}
/// The same of the backward pass.
inline Operation moves_back(OperationKind kind, double values) {
  return {.kind = kind, .backward = true, .values = values};
}

inline void append(std::vector<Operation>& all, std::vector<Operation> more) {
  for (Operation& one : more) all.push_back(std::move(one));
}

}  // namespace octet::model
