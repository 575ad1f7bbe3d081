#pragma once

#include <cstdint>
#include <vector>

#include "octet/device/device.h"
#include "octet/model/architecture.h"

namespace octet::model {

/// Keys and values of sequences that are being decoded, in the compute dtype, or in E4M3 with a scale for
/// each key and value of a KV head (ops::CachedAttentionArgs).
class KvCache {
 public:
  /// Reserves room for `slots` sequences of `capacity` tokens. `dtype`: the compute dtype, or E4M3. Throws
  /// Error for sizes that are impossible.
  KvCache(Arena& arena, const Architecture& architecture, DType dtype, std::int64_t slots,
          std::int64_t capacity);
  std::int64_t slots() const { return slots_; }
  std::int64_t capacity() const { return capacity_; }
  DType dtype() const { return dtype_; }
  /// Enqueues a copy of the first `tokens` tokens of a slot to another one, in all blocks.
  void copy_prefix(Device& device, Stream& stream, std::int64_t from, std::int64_t to, std::int64_t tokens);
  /// Of a block: [slots, capacity, kv_heads, head_dim].
  void* keys(std::int64_t layer) const { return part(keys_, layer, 0); }
  void* values(std::int64_t layer) const { return part(values_, layer, 0); }
  /// In E4M3, [slots, capacity, kv_heads]; else null.
  float* key_scales(std::int64_t layer) const {
    return fp8() ? static_cast<float*>(part(keys_, layer, 1)) : nullptr;
  }
  float* value_scales(std::int64_t layer) const {
    return fp8() ? static_cast<float*>(part(values_, layer, 1)) : nullptr;
  }

 private:
  struct Part {
    void* data = nullptr;
    std::size_t token_bytes = 0;  ///< of a token in a block
  };
  bool fp8() const { return dtype_ == DType::e4m3; }
  void* part(const std::vector<Part>& parts, std::int64_t layer, std::size_t which) const {
    return parts[static_cast<std::size_t>(layer) * (fp8() ? 2 : 1) + which].data;
  }

  std::int64_t slots_ = 0;
  std::int64_t capacity_ = 0;
  DType dtype_ = DType::f32;
  std::vector<Part> keys_, values_;  ///< of each block its array, in E4M3 followed by its scales
};

}  // namespace octet::model
