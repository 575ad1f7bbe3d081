// Adapters of a parameter of all experts, as PEFT stores them (target_parameters): one A and one B for all
// experts of a block. The trained parameters are an A and a B for each expert.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/model/tuning.h"

namespace octet::runtime {

/// A matrix of an expert's adapter in a tensor of PEFT: A [experts * rank, inputs] has the rows of an expert
/// in a run, and B [outputs, rank * experts] has its columns, `experts` apart.
struct StackedMatrix {
  std::string tensor;   ///< "base_model.model.model.layers.0.mlp.experts.lora_A.weight"
  std::string partner;  ///< the tensor of the other matrix of the adapter
  bool inputs = false;  ///< A
  std::int64_t expert = 0, experts = 1;

  /// Returns the shape of the tensor for the shape of the expert's matrix. `exchanged`: of `partner`, which
  /// holds the transposed matrix. PEFT before 0.19.1 stored adapters so.
  std::vector<std::int64_t> stacked(const std::vector<std::int64_t>& shape, bool exchanged = false) const;
  /// Returns the element of that tensor for element `i` of the expert's matrix of this shape.
  std::int64_t element(const std::vector<std::int64_t>& shape, std::int64_t i, bool exchanged = false) const;
};

/// Returns the place of a parameter ("base_model.model.….experts.0.down_proj.lora_A.weight") in PEFT's
/// tensors, or nullopt if PEFT stores it under its own name.
std::optional<StackedMatrix> stacked_matrix(const model::Tuning& tuning, const std::string& parameter);

}  // namespace octet::runtime
