// What hashes of all ranks say about who holds or computed wrong bits.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "octet/comm/seals.h"
#include "octet/store/hashes.h"

namespace octet::train {

/// What a rank tells the others at a check.
struct FaultReport {
  std::array<ops::Hash, store::kHeldKinds> replicas;  ///< what every rank holds
  ops::Hash scales;                                   ///< of activations, which every rank has alike
  ops::Hash sums;                                     ///< of gradients, where every rank has them
  ops::Hash own, replayed;  ///< gradients of its own micro-batch, and of the one that it computed again
  std::array<bool, store::kHeldKinds> changed{};  ///< since its last update, by kind
  std::vector<comm::BrokenMessage> broken;        ///< that it received

  std::string bytes() const;
  static FaultReport of(const std::string& bytes);
};

/// A thing that went wrong and the ranks that it may have gone wrong on: one, or several where nobody can
/// tell.
struct Fault {
  std::vector<int> ranks;
  std::string what;
};

/// What the reports, by rank, say of memory and messages. What a rank finds wrong with itself explains what
/// others see of it, so comparisons among ranks come second.
std::vector<Fault> faults_in(const std::vector<FaultReport>& reports);

/// Ranks whose own gradients differ from those that another rank computed of the same micro-batch, which is
/// `shift` ranks before it (modulo their number).
std::vector<int> differing(const std::vector<FaultReport>& reports, int shift);
/// Who of the two is wrong, by what a third one has computed, `second` ranks before. Both where all three
/// differ, and where `thirds` is empty.
std::vector<Fault> faults_of_replays(const std::vector<FaultReport>& reports, int shift,
                                     const std::vector<ops::Hash>& thirds, int second);

}  // namespace octet::train
