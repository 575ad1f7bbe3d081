// A checkpoint in host memory, open for reading: the parts of all ranks. Some parts are on this host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "octet/checkpoint/checkpoint.h"
#include "octet/comm/channel.h"
#include "rank_part.h"

namespace octet::memory_tier {

/// All parts of a checkpoint in host memory.
class PartSet : public checkpoint::SharedState {
 public:
  struct Part {
    PartHeader header;
    int giver = 0;                     ///< the rank that sends its values to hosts without them
    std::optional<PartMemory> memory;  ///< set on a host that has the part
  };
  /// `parts`: one per rank that took the checkpoint, in rank order. Local values must be verified. Throws
  /// Error (no_valid_checkpoint) unless the parts cover their tensors exactly once.
  PartSet(std::vector<Part> parts, std::string words);

  const std::string& words() const override { return words_; }
  const checkpoint::Manifest& manifest() const override { return manifest_; }
  const std::string& state() const override { return parts_.front().header.facts.state; }
  const std::string& config_yaml() const override { return parts_.front().header.facts.config; }
  /// Hosts without a part receive the needed bytes from its giver. A rank needs about 16 MiB of additional
  /// memory.
  void read(comm::Channel& channel, const std::vector<TensorSlice>& slices) const override;
  void close() override;

 private:
  std::vector<Part> parts_;
  std::string words_;
  checkpoint::Manifest manifest_;
};

}  // namespace octet::memory_tier
