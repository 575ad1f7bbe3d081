#include "octet/generate/step_bytes.h"

#include <algorithm>

namespace octet::generate {

double step_weight_bytes(const Decoder& decoder) {
  const model::Architecture& a = decoder.options().architecture;
  std::size_t bytes = 0;
  for (const Reservation& r : decoder.arena().reservations()) {
    if (r.kind == MemoryKind::device && r.name.starts_with("parameters/")) bytes += r.bytes;
  }
  const auto table = static_cast<double>(a.vocabulary * a.hidden) *
                     static_cast<double>(size_of(decoder.options().recipe.compute));
  return static_cast<double>(bytes) - (a.tied ? 0 : table);
}

double step_cache_bytes(const DecoderOptions& options, std::int64_t before) {
  const model::Architecture& a = options.architecture;
  std::int64_t seen = 0;
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    const std::int64_t window = a.block(layer).window;
    seen += window > 0 ? std::min(window, before + 1) : before + 1;
  }
  const auto element = static_cast<std::int64_t>(size_of(options.recipe.compute));
  const std::int64_t head = options.fp8_cache ? a.heads.head_dim + 4 : a.heads.head_dim * element;
  return 2 * static_cast<double>(seen * a.heads.kv_heads * head);
}

}  // namespace octet::generate
