#include "octet/train/merged_model.h"

#include <map>

#include "octet/base/log.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/model/build.h"
#include "octet/runtime/initial_weights.h"
#include "octet/runtime/model_folder.h"
#include "octet/setup/adapters.h"

namespace octet::train {
namespace {

/// The matrices of a module's adapter.
struct Matrices {
  std::vector<float> a, b;  ///< [rank, in], [out, rank]
  std::int64_t rank = 0, inputs = 0;
  double factor = 0;
};

/// The base's tensors, with what an adapter adds to them.
class Merged {
 public:
  Merged(const std::string& base, const std::string& adapter)
      : architecture_(runtime::read_model(base)), base_(base), file_(adapter + "/adapter_model.safetensors") {
    const std::string path = adapter + "/adapter_config.json";
    architecture_.tuning = setup::tuning_of(setup::read_adapter_config(read_json(path), path), architecture_);
    // Everything that both files hold has its place, and nothing is missing.
    runtime::InitialWeights(
        {.folder = base, .tensor_prefix = architecture_.tensor_prefix, .adapter = adapter},
        model::build_layout(architecture_));
  }

  bool quantised() const { return architecture_.stored.format != model::StoredWeights::Format::plain; }
  std::vector<checkpoint::TensorHeader> tensors() const {
    std::vector<checkpoint::TensorHeader> all;
    for (const checkpoint::StoredTensor& tensor : base_.tensors()) all.push_back(tensor);
    return all;
  }

  void read(const std::string& name, std::int64_t begin, std::int64_t count, float* out) {
    const std::string whole = model::kAdapterPrefix + name;
    if (file_.find(whole) != nullptr) return file_.read(whole, begin, count, out);
    base_.read(name, begin, count, out);
    const std::string module = name.substr(0, name.rfind('.'));
    const auto shape = architecture_.tuning.modules.find(module);
    if (!name.ends_with(".weight") || shape == architecture_.tuning.modules.end()) return;
    add(matrices(module, shape->second), begin, count, out);
  }

 private:
  const Matrices& matrices(const std::string& module, const model::AdapterShape& shape) {
    if (module == module_) return at_hand_;
    const auto load = [&](const char* matrix) {
      const checkpoint::StoredTensor& tensor = file_.at(model::kAdapterPrefix + module + matrix);
      std::vector<float> values(static_cast<std::size_t>(tensor.count));
      file_.read(tensor.name, 0, tensor.count, values.data());
      return values;
    };
    at_hand_ = {
        .a = load(".lora_A.weight"), .b = load(".lora_B.weight"), .rank = shape.rank, .factor = shape.factor};
    at_hand_.inputs = static_cast<std::int64_t>(at_hand_.a.size()) / shape.rank;
    module_ = module;
    return at_hand_;
  }

  /// Adds elements [begin, begin + count) of factor · B A.
  static void add(const Matrices& m, std::int64_t begin, std::int64_t count, float* out) {
    for (std::int64_t i = begin; i < begin + count;) {
      const std::int64_t row = i / m.inputs, column = i % m.inputs;
      const std::int64_t n = std::min(m.inputs - column, begin + count - i);
      std::vector<float> sum(static_cast<std::size_t>(n), 0.0f);
      for (std::int64_t r = 0; r < m.rank; ++r) {
        const float b = m.b[static_cast<std::size_t>(row * m.rank + r)];
        const float* a = m.a.data() + r * m.inputs + column;
        for (std::int64_t c = 0; c < n; ++c) sum[static_cast<std::size_t>(c)] += b * a[c];
      }
      const auto factor = static_cast<float>(m.factor);
      for (std::int64_t c = 0; c < n; ++c) out[i - begin + c] += factor * sum[static_cast<std::size_t>(c)];
      i += n;
    }
  }

  model::Architecture architecture_;
  checkpoint::WeightFolder base_;
  checkpoint::SafetensorsFile file_;
  std::string module_;  ///< whose matrices are at hand
  Matrices at_hand_;
};

}  // namespace

std::vector<std::string> export_merged(const checkpoint::ExportOptions& options, const std::string& adapter) {
  Merged merged(options.source_folder, adapter);
  log::info("the adapter is merged into " +
            std::string(merged.quantised() ? "what the quantised weights stand for in " : "the weights of ") +
            options.source_folder);
  return checkpoint::export_model(options, merged.tensors(),
                                  [&](const std::string& name, std::int64_t begin, std::int64_t count,
                                      float* out) { merged.read(name, begin, count, out); });
}

}  // namespace octet::train
