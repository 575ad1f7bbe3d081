// A checkpoint in the memory of hosts, open for reading: the parts of all ranks, some of them here.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory_part.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/comm/channel.h"

namespace octet::checkpoint {

class MemoryParts {
 public:
  struct Part {
    PartHeader header;
    int giver = 0;                     ///< the rank that hands its values to hosts without them
    std::optional<PartMemory> memory;  ///< on a host that has them
  };
  /// Of all ranks that took the checkpoint, in their order; values that are here hold. Throws Error
  /// (no_valid_checkpoint) where they do not cover their tensors exactly once.
  MemoryParts(std::vector<Part> parts, std::string words);

  /// "memory of the hosts, step 12".
  const std::string& words() const { return words_; }
  /// Step, ranks, stage and tensors, without hashes and places.
  const Manifest& manifest() const { return manifest_; }
  const std::string& state() const { return parts_.front().header.facts.state; }
  const std::string& config_yaml() const { return parts_.front().header.facts.config; }

  /// Fills slices that fit the tensors (Checkpoint::require_fit). Hosts that lack a part get from its giver
  /// what they need of it; beside the slices a rank holds some 16 MiB meanwhile. Collective; throws Error on
  /// all ranks.
  void read(comm::Channel& channel, const std::vector<TensorSlice>& slices) const;
  /// Lets the memory go; nothing is read afterwards.
  void close();

 private:
  std::vector<Part> parts_;
  std::string words_;
  Manifest manifest_;
};

}  // namespace octet::checkpoint
