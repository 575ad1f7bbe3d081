#pragma once

#include <string>

#include "octet/model/architecture.h"

namespace octet::model {

/// Names of the modules of a mixture in a family.
struct ExpertNames {
  std::string block;   ///< "mlp."
  std::string router;  ///< "mlp.gate"
  const char *gate, *up, *down;
};

inline ExpertNames names_of(const ExpertShape& shape) {
  if (shape.names == ExpertShape::Names::mixtral)
    return {"block_sparse_moe.", "block_sparse_moe.gate", "w1", "w3", "w2"};
  if (shape.names == ExpertShape::Names::gpt_oss)
    return {"mlp.", "mlp.router", "gate_proj", "up_proj", "down_proj"};
  return {"mlp.", "mlp.gate", "gate_proj", "up_proj", "down_proj"};
}

}  // namespace octet::model
