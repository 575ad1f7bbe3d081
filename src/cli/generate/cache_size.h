// How much memory `trainer generate` gives its KV cache.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "generate/generate_options.h"
#include "octet/device/device.h"
#include "octet/generate/decoder.h"

namespace octet::cli {

/// Of what is free on a GPU, where nothing else is asked for.
inline constexpr double kGpuMemoryUtilization = 0.9;

/// Tokens of a pass: those asked for; else so many that a pass keeps a GPU busy and that what it takes beside
/// the cache stays small, 4,096; 512 on a CPU; and twice as many as there are questions in a batch where that
/// is more, so that prompts have room beside answers.
std::int64_t batched_tokens(std::optional<std::int64_t> asked, DeviceKind kind, std::int64_t batch);

/// Bytes of the cache of a decoder with these options (its own cache_bytes aside): what --kv-cache-bytes
/// says; on a GPU else what weights and everything else leave of the share that --gpu-memory-utilization
/// says, by itself no more than all sequences fill; on a CPU what these fill. Throws Error (usage) where the
/// share does not hold one sequence, and for a share on a CPU.
std::size_t cache_bytes(const GenerateOptions& options, const generate::DecoderOptions& decoder,
                        const Device& device);

/// The same of a GPU with so many bytes free, on any machine; `share`: what is asked for.
std::size_t cache_bytes_of_share(std::optional<double> share, const generate::DecoderOptions& decoder,
                                 std::size_t free);

/// Throws Error (usage) unless a share is above 0 and at most 1; `name`: what it was given as.
void require_share(double share, const std::string& name);

}  // namespace octet::cli
