#pragma once

#include <cstdint>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Keys and values of sequences that are being decoded, in the compute dtype.
class KvCache {
 public:
  /// Reserves room for `slots` sequences of `capacity` tokens. Throws Error for sizes that are impossible.
  KvCache(Arena& arena, const Architecture& architecture, DType dtype, std::int64_t slots,
          std::int64_t capacity);
  std::int64_t slots() const { return slots_; }
  std::int64_t capacity() const { return capacity_; }
  /// Enqueues a copy of the first `tokens` tokens of a slot to another one, in all blocks.
  void copy_prefix(Device& device, Stream& stream, std::int64_t from, std::int64_t to, std::int64_t tokens);
  /// Of a block: [slots, capacity, kv_heads, head_dim].
  void* keys(std::int64_t layer) const { return keys_[static_cast<std::size_t>(layer)]; }
  void* values(std::int64_t layer) const { return values_[static_cast<std::size_t>(layer)]; }

 private:
  std::int64_t slots_ = 0;
  std::int64_t capacity_ = 0;
  std::size_t token_bytes_ = 0;  ///< of the keys of a token in a block
  std::vector<void*> keys_, values_;
};

}  // namespace octet::model
