#include "octet/model/kv_cache.h"

#include "octet/base/error.h"

namespace octet::model {

KvCache::KvCache(Arena& arena, const Architecture& a, DType dtype, std::int64_t slots, std::int64_t capacity)
    : slots_(slots), capacity_(capacity) {
  std::int64_t elements = 0;
  if (slots < 1 || capacity < 1 || __builtin_mul_overflow(slots, capacity, &elements) ||
      __builtin_mul_overflow(elements, a.heads.kv_heads * a.heads.head_dim * 8, &elements)) {
    throw Error({.what = "a KV cache of this size is impossible",
                 .expected = "at least one sequence of one token that fits memory",
                 .found = std::to_string(slots) + " x " + std::to_string(capacity) + " tokens"});
  }
  const auto bytes = static_cast<std::size_t>(elements / 8) * size_of(dtype);
  token_bytes_ = static_cast<std::size_t>(a.heads.kv_heads * a.heads.head_dim) * size_of(dtype);
  for (std::int64_t layer = 0; layer < a.layers; ++layer) {
    keys_.push_back(arena.reserve("KV cache", bytes));
    values_.push_back(arena.reserve("KV cache", bytes));
  }
}

void KvCache::copy_prefix(Device& device, Stream& stream, std::int64_t from, std::int64_t to,
                          std::int64_t tokens) {
  check(from != to && from >= 0 && to >= 0 && from < slots_ && to < slots_ && tokens >= 0 &&
            tokens <= capacity_,
        "a prefix is copied between two slots");
  const std::size_t slot_bytes = static_cast<std::size_t>(capacity_) * token_bytes_;
  const std::size_t bytes = static_cast<std::size_t>(tokens) * token_bytes_;
  for (const auto* parts : {&keys_, &values_}) {
    for (void* part : *parts) {
      auto* base = static_cast<std::byte*>(part);
      device.copy(stream, base + static_cast<std::size_t>(to) * slot_bytes,
                  base + static_cast<std::size_t>(from) * slot_bytes, bytes);
    }
  }
}

}  // namespace octet::model
