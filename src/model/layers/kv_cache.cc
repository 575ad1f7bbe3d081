#include "octet/model/kv_cache.h"

#include "octet/base/error.h"

namespace octet::model {

KvCache::KvCache(Arena& arena, const Architecture& a, DType dtype, std::int64_t slots, std::int64_t capacity)
    : slots_(slots), capacity_(capacity), dtype_(dtype) {
  check(dtype == DType::f32 || dtype == DType::bf16 || fp8(), "a KV cache is f32, bf16 or E4M3");
  std::int64_t elements = 0;
  if (slots < 1 || capacity < 1 || __builtin_mul_overflow(slots, capacity, &elements) ||
      __builtin_mul_overflow(elements, a.heads.kv_heads * a.heads.head_dim * 8, &elements)) {
    throw Error({.what = "a KV cache of this size is impossible",
                 .expected = "at least one sequence of one token that fits memory",
                 .found = std::to_string(slots) + " x " + std::to_string(capacity) + " tokens"});
  }
  const auto bytes = static_cast<std::size_t>(elements / 8) * size_of(dtype);
  const auto reserve = [&](std::vector<Part>& parts) {
    const auto heads = static_cast<std::size_t>(a.heads.kv_heads);
    const std::size_t token = heads * static_cast<std::size_t>(a.heads.head_dim) * size_of(dtype);
    parts.push_back({.data = arena.reserve("KV cache", bytes), .token_bytes = token});
    if (!fp8()) return;
    const auto scales = static_cast<std::size_t>(slots * capacity) * heads * sizeof(float);
    parts.push_back({.data = arena.reserve("KV cache", scales), .token_bytes = heads * sizeof(float)});
  };
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    reserve(keys_);
    reserve(values_);
  }
}

void KvCache::copy_prefix(Device& device, Stream& stream, std::int64_t from, std::int64_t to,
                          std::int64_t tokens) {
  check(from != to && from >= 0 && to >= 0 && from < slots_ && to < slots_ && tokens >= 0 &&
            tokens <= capacity_,
        "a prefix is copied between two slots");
  for (const auto* parts : {&keys_, &values_}) {
    for (const Part& part : *parts) {
      const std::size_t slot_bytes = static_cast<std::size_t>(capacity_) * part.token_bytes;
      const std::size_t bytes = static_cast<std::size_t>(tokens) * part.token_bytes;
      auto* base = static_cast<std::byte*>(part.data);
      device.copy(stream, base + static_cast<std::size_t>(to) * slot_bytes,
                  base + static_cast<std::size_t>(from) * slot_bytes, bytes);
    }
  }
}

}  // namespace octet::model
