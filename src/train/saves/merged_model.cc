#include "octet/train/merged_model.h"

#include "octet/base/log.h"
#include "octet/model/build.h"
#include "octet/runtime/initial_weights.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"
#include "octet/weights/finite.h"
#include "octet/weights/safetensors.h"

namespace octet::train {

DType weights_dtype(const std::string& folder) {
  const weights::WeightFolder weights(folder);
  for (const weights::StoredTensor& tensor : weights.tensors()) {
    const bool written =
        tensor.dtype == DType::f32 || tensor.dtype == DType::bf16 || tensor.dtype == DType::f16;
    if (written && tensor.name.ends_with("_proj.weight")) return tensor.dtype;
  }
  return DType::bf16;
}

std::vector<std::string> export_merged(const checkpoint::ExportOptions& options,
                                       const std::vector<std::string>& adapters) {
  const model::Architecture architecture = runtime::read_model(options.source_folder);
  const weights::WeightFolder base(options.source_folder);
  runtime::AddedAdapters added(setup::added_adapters(adapters, architecture),
                               [&](const std::string& name, std::int64_t begin, std::int64_t count,
                                   float* out) { base.read(name, begin, count, out); });
  // Checks that all weights of the model are present and expected.
  const runtime::InitialWeights complete({.folder = options.source_folder,
                                          .tensor_prefix = architecture.tensor_prefix,
                                          .unread = model::unread_tensors(architecture)},
                                         model::build_layout(architecture));
  const bool quantised = architecture.stored.format != model::StoredWeights::Format::plain;
  log::info(std::string(adapters.size() == 1 ? "the adapter is" : "the adapters are") + " merged into " +
            (quantised ? "the dequantised weights of " : "the weights of ") + options.source_folder);
  std::vector<weights::TensorHeader> tensors;
  for (const weights::StoredTensor& tensor : base.tensors()) tensors.push_back(tensor);
  checkpoint::ExportOptions whole = options;
  whole.tied = architecture.tied;
  return checkpoint::export_model(
      whole, tensors, [&](const std::string& name, std::int64_t begin, std::int64_t count, float* out) {
        base.read(name, begin, count, out);
        weights::require_finite(name, out, count, options.dtype, options.source_folder,
                                "use weights of the base model without such values");
        added.add_to(name, begin, count, out);
        weights::require_finite(name, out, count, options.dtype, adapters.back());
      });
}

}  // namespace octet::train
