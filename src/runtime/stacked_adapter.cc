#include "octet/runtime/stacked_adapter.h"

#include <string_view>

namespace octet::runtime {

std::vector<std::int64_t> StackedMatrix::stacked(const std::vector<std::int64_t>& shape,
                                                 bool exchanged) const {
  const std::int64_t rank = inputs ? shape[0] : shape[1], other = inputs ? shape[1] : shape[0];
  if (inputs != exchanged) return {experts * rank, other};
  return {other, rank * experts};
}

std::int64_t StackedMatrix::element(const std::vector<std::int64_t>& shape, std::int64_t i,
                                    bool exchanged) const {
  const std::int64_t rank = inputs ? shape[0] : shape[1], others = inputs ? shape[1] : shape[0];
  const std::int64_t row = i / shape[1], column = i % shape[1];
  const std::int64_t r = inputs ? row : column, other = inputs ? column : row;
  if (inputs != exchanged) return (expert * rank + r) * others + other;
  return other * rank * experts + r * experts + expert;
}

std::optional<StackedMatrix> stacked_matrix(const model::Tuning& tuning, const std::string& parameter) {
  constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
  const bool a = parameter.ends_with(kA);
  const std::string prefix = model::kAdapterPrefix;
  if ((!a && !parameter.ends_with(kB)) || !parameter.starts_with(prefix)) return std::nullopt;
  const auto found =
      tuning.stacked.find(parameter.substr(prefix.size(), parameter.size() - prefix.size() - kA.size()));
  if (found == tuning.stacked.end()) return std::nullopt;
  const auto& [tensors, expert, experts] = found->second;
  const auto named = [&](std::string_view end) { return prefix + tensors + std::string(end); };
  return StackedMatrix{.tensor = named(a ? kA : kB),
                       .partner = named(a ? kB : kA),
                       .inputs = a,
                       .expert = expert,
                       .experts = experts};
}

}  // namespace octet::runtime
