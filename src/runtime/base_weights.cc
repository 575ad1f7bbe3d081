#include "base_weights.h"

#include "octet/base/error.h"
#include "octet/checkpoint/export.h"

namespace octet::runtime {

BaseWeights::BaseWeights(const std::string& folder, const TrainedParameters& trained) : trained_(trained) {
  if (trained.checkpoint == nullptr || trained.part) folder_.emplace(folder);
}

bool BaseWeights::from_checkpoint(const std::string& name) const {
  if (trained_.checkpoint == nullptr) return false;
  return !trained_.part || trained_.checkpoint->find(name) != nullptr;
}

void BaseWeights::require_used(const std::set<std::string>& used, const std::string& prefix,
                               const std::vector<std::string>& unread) const {
  if (folder_) folder_->require_used(used, prefix, unread);
  if (trained_.checkpoint == nullptr) return;
  for (const checkpoint::CheckpointTensor& tensor : trained_.checkpoint->tensors()) {
    // Names with a slash are of the optimizer and of scales.
    if (tensor.name.find('/') != std::string::npos || used.contains(tensor.name)) continue;
    throw Error({.what = "a parameter of the checkpoint has no place in the model",
                 .found = "tensor '" + tensor.name + "'",
                 .where = trained_.checkpoint->path(),
                 .fix = "name the model that the run began with",
                 .code = ExitCode::usage});
  }
}

void BaseWeights::round(std::int64_t count, float* values) const {
  check(trained_.dtype == DType::f32 || trained_.dtype == DType::bf16 || trained_.dtype == DType::f16,
        "weights are written as f32, bf16 or f16");
  if (trained_.checkpoint == nullptr || trained_.dtype == DType::f32) return;
  const bool brain = trained_.dtype == DType::bf16;
  for (std::int64_t i = 0; i < count; ++i)
    values[i] = brain ? from_bf16(to_bf16(values[i])) : from_f16(to_f16(values[i]));
}

void BaseWeights::read(const TensorSlice& slice) const {
  if (from_checkpoint(slice.name)) {
    trained_.checkpoint->read({slice});
  } else {
    folder_->read(slice);
  }
  if (checkpoint::stays_fp32(slice.name)) return;
  each_run(slice,
           [&](std::int64_t, std::int64_t count, void* data) { round(count, static_cast<float*>(data)); });
}

void BaseWeights::read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) const {
  if (from_checkpoint(name)) {
    trained_.checkpoint->read(name, begin, count, out);
  } else {
    folder_->read(name, begin, count, out);
  }
  if (checkpoint::stays_fp32(name)) return;
  round(count, out);
}

const weights::WeightFolder& BaseWeights::folder() const {
  check(folder_.has_value(), "the weights come from a folder, not from a checkpoint");
  return *folder_;
}

}  // namespace octet::runtime
