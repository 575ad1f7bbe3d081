#include "octet/runtime/host_batch.h"

#include <algorithm>

namespace octet::runtime {

std::int64_t HostBatch::labels() const {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; });
}

// The finisher of splitmix64 (Steele, Lea and Flood 2014), which is one to one in b.
std::uint64_t mixed(std::uint64_t a, std::uint64_t b) {
  std::uint64_t x = (a ^ 0x9E3779B97F4A7C15ull) * 0xD1B54A32D192ED03ull + b;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

void add_document(HostBatch& batch, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels,
                  std::optional<std::uint64_t> sample) {
  if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);
  const std::uint64_t name = sample.value_or(batch.cu_seqlens.size());
  const auto base = static_cast<std::int32_t>(batch.ids.size());
  for (std::size_t t = 0; t < ids.size(); ++t) {
    batch.ids.push_back(ids[t]);
    batch.positions.push_back(static_cast<std::int32_t>(t));
    batch.names.push_back(mixed(name, t));
    if (t + 1 < ids.size() && labels[t + 1] >= 0) {
      batch.label_rows.push_back(base + static_cast<std::int32_t>(t));
      batch.targets.push_back(labels[t + 1]);
    }
  }
  batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
  batch.max_length = std::max(batch.max_length, static_cast<std::int64_t>(ids.size()));
}

}  // namespace octet::runtime
