#include "faults/finite.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "octet/weights/finite.h"
#include "octet/weights/safetensors.h"

namespace octet::train {

std::string not_finite_in(comm::Job& job, const std::string& model,
                          const std::vector<std::string>& adapters) {
  std::vector<std::pair<std::string, std::string>> folders{{model, "model"}};
  for (const std::string& adapter : adapters) folders.emplace_back(adapter, "adapter_model");
  for (const auto& [folder, stem] : folders) {
    std::int64_t first = INT64_MAX;
    std::vector<weights::StoredTensor> tensors;
    job.together([&] {
      const weights::WeightFolder weights(folder, stem);
      tensors = weights.tensors();
      const auto count = std::ssize(tensors);
      for (std::int64_t i = job.rank(); i < count && first == INT64_MAX; i += job.size()) {
        if (!weights::is_finite(weights, tensors[static_cast<std::size_t>(i)])) first = i;
      }
    });
    first = job.all_min(first);
    if (first != INT64_MAX) return weights::name_in_file(tensors[static_cast<std::size_t>(first)]);
  }
  return "";
}

}  // namespace octet::train
