// The KV cache that fits the memory of a rank, from a plan of the rank.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "octet/comm/collectives.h"
#include "octet/comm/job.h"
#include "octet/device/device.h"
#include "octet/generate/decoder.h"
#include "octet/generate/team.h"

namespace octet::generate {

// Ranks without hardware, for plans of generation.

/// A rank of one replica with split layers, or the only rank of a whole model. Its device allocates nothing,
/// so its decoder is the memory plan of that rank.
class PlannedRank {
 public:
  /// `stands_for` is the kind of the planned device. `rank` is below tensor_size x stages.
  PlannedRank(DeviceKind stands_for, int rank, int tensor_size, int stages);
  /// Returns a decoder, which must not outlive this object. Throws like Decoder's constructor.
  std::unique_ptr<Decoder> decoder(const DecoderOptions& options) const;
  model::Share share() const { return team_ ? team_->share() : model::Share{}; }
  /// Returns the bytes of the staging buffers, which are not in the decoder's arena.
  std::size_t staging_bytes() const;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<comm::Job> job_;
  std::unique_ptr<comm::Collectives> data_;
  std::unique_ptr<Team> team_;
};

/// Returns the first rank of the tensor group of a stage, which holds most of that stage.
int first_rank_of_stage(int stage, int tensor_size, int stages);

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
