// A checkpoint in host memory, open for reading: the parts of all ranks. Some parts are on this host.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "memory/memory_part.h"
#include "octet/checkpoint/checkpoint.h"
#include "octet/comm/channel.h"

namespace octet::checkpoint {

class MemoryParts {
 public:
  struct Part {
    PartHeader header;
    int giver = 0;                     ///< the rank that sends its values to hosts without them
    std::optional<PartMemory> memory;  ///< set on a host that has the part
  };
  /// `parts`: one per rank that took the checkpoint, in rank order. Local values must be verified. Throws
  /// Error (no_valid_checkpoint) unless the parts cover their tensors exactly once.
  MemoryParts(std::vector<Part> parts, std::string words);

  /// Returns a description for messages, for example "memory of the hosts, step 12".
  const std::string& words() const { return words_; }
  /// Returns step, ranks, stage and tensors, without hashes and offsets.
  const Manifest& manifest() const { return manifest_; }
  const std::string& state() const { return parts_.front().header.facts.state; }
  const std::string& config_yaml() const { return parts_.front().header.facts.config; }

  /// Fills slices that fit the tensors (Checkpoint::require_fit). Hosts without a part receive the needed
  /// bytes from its giver. A rank needs about 16 MiB of additional memory. Collective. Throws Error on all
  /// ranks.
  void read(comm::Channel& channel, const std::vector<TensorSlice>& slices) const;
  /// Releases the memory. No reads are allowed afterwards.
  void close();

 private:
  std::vector<Part> parts_;
  std::string words_;
  Manifest manifest_;
};

}  // namespace octet::checkpoint
