#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/model/layout.h"

namespace octet::runtime {

/// Where the parameters of a model come from.
struct WeightSource {
  std::string folder;         ///< of a Hugging Face model
  std::string tensor_prefix;  ///< Architecture::tensor_prefix
  std::string adapter;        ///< folder of an adapter, as PEFT writes it; empty: adapters are new
  std::uint64_t seed = 0;     ///< of new adapters
};

/// The weights of a folder and, under PEFT's names, of adapters beside them. What is trained whole comes from
/// the adapter where it holds it, else from the model.
class InitialWeights {
 public:
  /// Throws Error for files that are missing or broken, and for weights and adapters that no parameter of
  /// `layout` takes: they would be left out.
  InitialWeights(const WeightSource& source, const model::ParameterLayout& layout);

  /// Fills an f32 slice of a parameter, or an array of its codes in NF4 (ParameterStore::initialise). Throws
  /// Error for a tensor that is missing or of another shape, and for an adapter's value that is not finite.
  void read(const TensorSlice& slice) const;

 private:
  bool read_adapter(const TensorSlice& slice) const;
  void require_adapter_used(const model::ParameterLayout& layout) const;

  WeightSource source_;
  checkpoint::WeightFolder weights_;
  std::optional<checkpoint::SafetensorsFile> adapter_;
};

/// The name of a parameter in its model: without what PEFT puts before it.
std::string name_in_model(const std::string& parameter);

/// Whether a parameter is a matrix of an adapter.
bool is_adapter(const std::string& parameter);

}  // namespace octet::runtime
