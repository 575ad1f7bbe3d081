#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"

namespace octet::comm {

/// A message that arrived corrupted. Ranks are numbers in the group.
struct BrokenMessage {
  int from = 0;
  int to = 0;
  std::string name;  ///< of the collective
};

/// Collectives with messages that can be sealed: each message is sent with a hash of its bytes, which the
/// receiver verifies. Collectives between CPU ranks can be sealed. A single rank sends no messages.
class Seals {
 public:
  virtual ~Seals() = default;
  /// Switches sealing of later collectives on or off. All ranks call it, between the same collectives.
  virtual void seal(bool on) = 0;
  /// Returns the corrupted messages of completed collectives that this rank received since the last call.
  virtual std::vector<BrokenMessage> take_broken() = 0;
  /// For tests: inverts one bit of one of the next messages that this rank receives. `draw` selects both.
  virtual void spoil(std::uint64_t draw) = 0;
};

/// Returns null if these collectives cannot be sealed.
Seals* seals_of(Collectives& collectives);

}  // namespace octet::comm
