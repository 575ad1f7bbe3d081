#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"

namespace octet::comm {

/// A message that did not arrive as it was sent. Ranks are numbers in the group.
struct BrokenMessage {
  int from = 0;
  int to = 0;
  std::string name;  ///< of the collective
};

/// Collectives whose messages can be sealed: each then travels with a hash of its bytes, which the receiver
/// compares. Those of ranks on CPUs can; nothing of a lone rank travels.
class Seals {
 public:
  virtual ~Seals() = default;
  /// Whether what is enqueued from now on is sealed. All ranks call it, between the same collectives.
  virtual void seal(bool on) = 0;
  /// What this rank received broken since the last call, of what is complete.
  virtual std::vector<BrokenMessage> take_broken() = 0;
  /// For tests: a bit of one of the next messages that this rank receives is inverted, which `draw` chooses.
  virtual void spoil(std::uint64_t draw) = 0;
};

/// Null: these cannot be sealed.
Seals* seals_of(Collectives& collectives);

}  // namespace octet::comm
