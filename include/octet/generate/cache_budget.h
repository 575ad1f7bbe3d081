// Size of the KV cache, from a number of bytes or from a share of the free memory of a GPU.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "octet/device/device.h"
#include "octet/generate/decoder.h"

namespace octet::generate {

/// Default share of the free memory of a GPU.
inline constexpr double kGpuMemoryUtilization = 0.9;

/// Returns the most tokens of a forward pass: `asked` if given. The default is 4,096 on a GPU, which keeps it
/// busy with little scratch memory, and 512 on a CPU. The default is at least 2 x batch, so that prompts have
/// room in a pass with running answers.
std::int64_t batched_tokens(std::optional<std::int64_t> asked, DeviceKind kind, std::int64_t batch);

/// The requested size of a KV cache.
struct CacheWish {
  std::optional<std::size_t> bytes;  ///< --kv-cache-bytes
  std::optional<double> share;       ///< --gpu-memory-utilization
};

/// Returns the bytes of the KV cache of a decoder with these options (decoder.cache_bytes is ignored).
/// `wish.bytes` decides if it is given.
/// On a GPU: the share minus weights and everything else. If the share is not given, at most the size that
/// all sequences fill.
/// On a CPU: the size that all sequences fill.
/// Throws Error (usage) if the share does not hold one sequence, and for a share on a CPU.
std::size_t cache_bytes(const CacheWish& wish, const DecoderOptions& decoder, const Device& device);

/// Like cache_bytes() for a GPU with `free` free bytes, on any machine. `share` is the requested share, if
/// any.
std::size_t cache_bytes_of_share(std::optional<double> share, const DecoderOptions& decoder,
                                 std::size_t free);

/// Throws Error (usage) unless 0 < share <= 1. `name` is the option or key of the share.
void require_share(double share, const std::string& name);

}  // namespace octet::generate
