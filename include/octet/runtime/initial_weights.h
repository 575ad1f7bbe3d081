#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/base/tensor_slice.h"
#include "octet/model/layout.h"
#include "octet/runtime/adapter_file.h"
#include "octet/runtime/trained_parameters.h"

namespace octet::runtime {

class BaseWeights;

/// How the model keeps the weights under its adapters.
struct HeldAs {
  DType compute = DType::f32;        ///< f32 or bf16
  bool nf4 = false;                  ///< quantised when they are loaded (ops/nf4.h)
  bool double_quantization = false;  ///< of their scales
};

/// Where the parameters of a model come from.
struct WeightSource {
  std::string folder;               ///< of a Hugging Face model
  TrainedParameters trained;        ///< in place of the weights of `folder`
  std::string tensor_prefix;        ///< Architecture::tensor_prefix
  std::vector<AddedAdapter> added;  ///< to the weights of `folder`, before anything is trained
  std::string adapter;              ///< folder of an adapter to go on with; empty: adapters are new
  std::uint64_t seed = 0;           ///< of new adapters
  HeldAs held;                      ///< new magnitudes of DoRA are norms of what the model computes with
};

/// The weights of a folder, with what adapters add to them, and, under PEFT's names, of adapters beside them.
/// What is trained whole comes from the adapter where it holds it, else from the model.
class InitialWeights {
 public:
  /// Throws Error for files that are missing or broken, and for weights and adapters that no parameter of
  /// `layout` takes: they would be left out.
  InitialWeights(const WeightSource& source, const model::ParameterLayout& layout);
  ~InitialWeights();

  /// Fills an f32 slice of a parameter, or an array of its codes in NF4 (ParameterStore::initialise). Throws
  /// Error for a tensor that is missing or of another shape, and for an adapter's value that is not finite.
  void read(const TensorSlice& slice) const;

 private:
  void read_base(const TensorSlice& slice) const;
  void read_norms(const TensorSlice& slice) const;

  WeightSource source_;
  std::unique_ptr<const BaseWeights> weights_;
  mutable AddedAdapters added_;  ///< keeps the matrices of the module that was read last
  std::optional<AdapterFile> adapter_;
};

}  // namespace octet::runtime
