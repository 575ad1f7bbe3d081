#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "octet/base/dtype.h"
#include "octet/base/tensor_slice.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/model/layout.h"
#include "octet/runtime/adapter_file.h"

namespace octet::runtime {

/// Parameters of a checkpoint on disk that replace the parameters of a model's folder when its weights are
/// loaded.
struct TrainedParameters {
  std::shared_ptr<const checkpoint::Checkpoint> checkpoint;  ///< null: the folder's weights are loaded
  DType dtype = DType::f32;  ///< all are first rounded to it, as in an export: f32, bf16 or f16
  /// true: the checkpoint holds the trained parameters, and the folder holds the others. false: the
  /// checkpoint holds every parameter, and the folder needs no weights.
  bool part = false;
};

class BaseWeights;

/// Formats in which the model keeps the weights under its adapters.
struct HeldAs {
  DType compute = DType::f32;        ///< f32 or bf16
  bool nf4 = false;                  ///< quantised during loading (ops/nf4.h)
  bool double_quantization = false;  ///< of their scales
};

/// The source of a model's parameters.
struct WeightSource {
  std::string folder;               ///< of a Hugging Face model
  TrainedParameters trained;        ///< replace the weights of `folder`
  std::string tensor_prefix;        ///< Architecture::tensor_prefix
  std::vector<std::string> unread;  ///< beginnings of names of tensors that may be there and are not read
  std::vector<AddedAdapter> added;  ///< added to the weights of `folder`, before anything is trained
  std::string adapter;              ///< folder of an adapter to continue from; empty: adapters are new
  model::Tuning tuning = {};        ///< of the trained model
  std::uint64_t seed = 0;           ///< of new adapters, and of a new head
  /// The head of a reward model: if the weights lack it, its values are uniform in ± 1 / sqrt(hidden). "":
  /// none.
  std::string new_head = {};
  HeldAs held;  ///< new DoRA magnitudes are norms of the weights as the model computes with them
};

/// The weights of a folder including added adapters, and the parameters of trained adapters under PEFT's
/// names. Fully trained parameters come from the adapter if it holds them, otherwise from the model.
class InitialWeights {
 public:
  /// Throws Error for missing or broken files, and for weights and adapters that no parameter of `layout`
  /// takes, because they would be left out.
  InitialWeights(const WeightSource& source, const model::ParameterLayout& layout);
  ~InitialWeights();

  /// Fills an f32 slice of a parameter, or an array of its NF4 codes (ParameterStore::initialise). Throws
  /// Error for a tensor that is missing or has another shape, and for an adapter's value that is not finite.
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
