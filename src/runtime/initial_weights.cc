#include "octet/runtime/initial_weights.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/model/build.h"
#include "octet/model/tuning.h"

namespace octet::runtime {
namespace {

constexpr const char* kFile = "adapter_model.safetensors";

std::optional<checkpoint::SafetensorsFile> open_adapter(const std::string& folder) {
  if (folder.empty()) return std::nullopt;
  const std::string path = folder + "/" + kFile;
  if (path_exists(path)) return std::optional<checkpoint::SafetensorsFile>(std::in_place, path);
  throw Error({.what = "the adapter's weights are not there",
               .expected = kFile,
               .found = path_exists(folder + "/adapter_model.bin") ? "adapter_model.bin" : "",
               .where = folder,
               .fix = "save the adapter with save_pretrained of PEFT, which writes safetensors",
               .code = ExitCode::usage});
}

/// Whether a slice asks for scales of NF4 as they are stored, which no parameter is called.
bool names_array(const std::string& name) {
  return name.ends_with("absmax") || name.ends_with(".nested_offset");
}

std::set<std::string> names_in_model(const model::ParameterLayout& layout) {
  std::set<std::string> names;
  for (const std::string& name : model::tensor_names(layout)) {
    if (!is_adapter(name)) names.insert(name_in_model(name));
  }
  return names;
}

}  // namespace

std::string name_in_model(const std::string& parameter) {
  const std::string prefix = model::kAdapterPrefix;
  return parameter.starts_with(prefix) ? parameter.substr(prefix.size()) : parameter;
}

bool is_adapter(const std::string& parameter) {
  return parameter.ends_with(".lora_A.weight") || parameter.ends_with(".lora_B.weight");
}

InitialWeights::InitialWeights(const WeightSource& source, const model::ParameterLayout& layout)
    : source_(source), weights_(source.folder), adapter_(open_adapter(source.adapter)) {
  weights_.require_used(names_in_model(layout), source.tensor_prefix);
  if (adapter_) require_adapter_used(layout);
}

void InitialWeights::require_adapter_used(const model::ParameterLayout& layout) const {
  const std::set<std::string> used = model::tensor_names(layout);
  const auto refuse = [&](const std::string& what, const std::string& name) {
    throw Error(
        {.what = what,
         .found = "tensor '" + name + "'",
         .where = adapter_->path(),
         .fix = "check that adapter_config.json and the weights beside it belong together, and to the model",
         .code = ExitCode::usage});
  };
  for (const checkpoint::StoredTensor& tensor : adapter_->tensors()) {
    // A tied head has the embedding's table, which PEFT writes under both names.
    const bool tied = name_in_model(tensor.name) == "lm_head.weight" && tensor.name != "lm_head.weight";
    if (!used.contains(tensor.name) && !tied)
      refuse("the adapter holds a tensor that has no place in the model with its configuration", tensor.name);
  }
  for (const std::string& name : used) {
    if (is_adapter(name) && adapter_->find(name) == nullptr)
      refuse("the adapter lacks a tensor that its configuration asks for", name);
  }
}

bool InitialWeights::read_adapter(const TensorSlice& slice) const {
  if (!adapter_ || adapter_->find(slice.name) == nullptr) return false;
  const checkpoint::StoredTensor& tensor = adapter_->at(slice.name);
  const auto refuse = [&](const std::string& what, const std::string& expected, const std::string& found) {
    throw Error({.what = what,
                 .expected = expected,
                 .found = found,
                 .where = adapter_->path() + ", tensor '" + slice.name + "'",
                 .code = ExitCode::usage});
  };
  if (tensor.shape != slice.shape) {
    refuse("a tensor of the adapter does not fit the model", checkpoint::shape_text(slice.shape),
           checkpoint::shape_text(tensor.shape));
  }
  each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
    auto* out = static_cast<float*>(data);
    adapter_->read(slice.name, begin, count, out);
    for (std::int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(out[i])) refuse("a value of the adapter is not finite", "", std::to_string(out[i]));
    }
  });
  return true;
}

void InitialWeights::read(const TensorSlice& slice) const {
  if (slice.dtype == DType::u8 || names_array(slice.name)) return weights_.read_stored(slice);
  if (read_adapter(slice)) return;
  if (!is_adapter(slice.name)) {
    TensorSlice in_model = slice;
    in_model.name = name_in_model(slice.name);
    return weights_.read(in_model);
  }
  const bool zero = slice.name.ends_with(".lora_B.weight");
  const model::NamedPart part{.name = slice.name, .shape = slice.shape};
  each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
    auto* out = static_cast<float*>(data);
    if (zero) return static_cast<void>(std::fill_n(out, count, 0.0f));
    const auto values = model::uniform_values(part, source_.seed, begin, count);
    std::copy(values.begin(), values.end(), out);
  });
}

}  // namespace octet::runtime
