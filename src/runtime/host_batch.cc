#include "octet/runtime/host_batch.h"

#include <algorithm>

namespace octet::runtime {

std::int64_t HostBatch::labels() const {
  return std::ranges::count_if(targets, [](std::int32_t target) { return target >= 0; });
}

void add_document(HostBatch& batch, std::span<const std::int32_t> ids, std::span<const std::int32_t> labels) {
  if (batch.cu_seqlens.empty()) batch.cu_seqlens.push_back(0);
  const auto base = static_cast<std::int32_t>(batch.ids.size());
  for (std::size_t t = 0; t < ids.size(); ++t) {
    batch.ids.push_back(ids[t]);
    batch.positions.push_back(static_cast<std::int32_t>(t));
    if (t + 1 < ids.size() && labels[t + 1] >= 0) {
      batch.label_rows.push_back(base + static_cast<std::int32_t>(t));
      batch.targets.push_back(labels[t + 1]);
    }
  }
  batch.cu_seqlens.push_back(static_cast<std::int32_t>(batch.ids.size()));
  batch.max_length = std::max(batch.max_length, static_cast<std::int64_t>(ids.size()));
}

}  // namespace octet::runtime
