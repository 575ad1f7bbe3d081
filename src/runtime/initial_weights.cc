#include "octet/runtime/initial_weights.h"

#include <algorithm>
#include <set>

#include "octet/model/build.h"
#include "octet/model/tuning.h"

namespace octet::runtime {
namespace {

std::optional<AdapterFile> open_adapter(const std::string& folder) {
  return folder.empty() ? std::nullopt : std::optional<AdapterFile>(std::in_place, folder);
}

std::set<std::string> names_in_model(const model::ParameterLayout& layout) {
  std::set<std::string> names;
  for (const std::string& name : model::tensor_names(layout)) {
    if (!is_adapter(name)) names.insert(name_in_model(name));
  }
  return names;
}

}  // namespace

InitialWeights::InitialWeights(const WeightSource& source, const model::ParameterLayout& layout)
    : source_(source), weights_(source.folder), added_(source.added), adapter_(open_adapter(source.adapter)) {
  weights_.require_used(names_in_model(layout), source.tensor_prefix);
  if (adapter_) adapter_->require_fit(layout);
}

void InitialWeights::read_base(const TensorSlice& slice) const {
  TensorSlice in_model = slice;
  in_model.name = name_in_model(slice.name);
  weights_.read(in_model);
  each_run(in_model, [&](std::int64_t begin, std::int64_t count, void* data) {
    added_.add_to(in_model.name, begin, count, static_cast<float*>(data));
  });
}

void InitialWeights::read(const TensorSlice& slice) const {
  if (adapter_ && adapter_->holds(slice.name)) {
    each_run(slice, [&](std::int64_t begin, std::int64_t count, void* data) {
      adapter_->read(slice.name, begin, count, static_cast<float*>(data));
    });
    return;
  }
  if (!is_adapter(slice.name)) return read_base(slice);
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
