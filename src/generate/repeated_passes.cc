#include "repeated_passes.h"

#include <algorithm>

namespace octet::generate {

std::int64_t RepeatedPasses::rounded(std::int64_t tokens) const {
  const auto up_to = [&](std::int64_t unit) { return (tokens + unit - 1) / unit * unit; };
  const std::int64_t unit = tokens <= 4 ? 1 : tokens <= 8 ? 2 : tokens <= 16 ? 4 : tokens <= 64 ? 8 : 32;
  return std::clamp(up_to(unit), tokens, std::max(tokens, most_));
}

bool RepeatedPasses::make(std::int64_t tokens, int kind, const std::function<void()>& enqueue) {
  const auto [found, first] = passes_.try_emplace({tokens, kind});
  Known& known = found->second;
  if (!first && !known.recording && !known.refused) {
    known.recording = record(*stream_, enqueue);
    known.refused = known.recording == nullptr;
  }
  known.recording ? known.recording->replay() : enqueue();
  return known.recording != nullptr;
}

}  // namespace octet::generate
