// Bit flips for tests, and the verdict on hashes that differ among ranks.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "octet/comm/collectives.h"
#include "octet/store/hashes.h"

namespace octet::train {

// Inverts bits for tests of fault detection.

/// With OCTETRUN_FLIPS=RANK:STEP:KIND:DRAW[,…], inverts one bit on rank RANK in step STEP, once. KIND is
/// parameters, masters, moments or frozen: state of the rank, before the step's replay if DRAW is even, else
/// after it. Or gradients (of a group, when it is given back) or messages (a message that the rank receives).
class Flips {
 public:
  /// Reads the variable. Throws Error (usage) if its format is wrong.
  explicit Flips(int rank);
  /// Called before the replay of a step, and after it with `late`.
  void strike(std::int64_t step, bool late, store::Hashes& hashes, comm::Seals* seals, Stream& compute);

 private:
  enum class Kind { parameters, masters, moments, frozen, gradients, messages };
  struct Flip {
    std::int64_t step = 0;
    Kind kind{};
    std::uint64_t draw = 0;
  };
  std::vector<Flip> flips_;  ///< pending flips of this rank
};

/// The message of a rank at a check.
struct FaultReport {
  std::array<ops::Hash, store::kHeldKinds> replicas;  ///< of state that every rank holds
  ops::Hash scales;                                   ///< of activations; equal on all ranks
  ops::Hash sums;                                     ///< of summed gradients, if every rank has them
  ops::Hash own, replayed;  ///< gradients of its micro-batch, and of the micro-batch that it replayed
  std::array<bool, store::kHeldKinds> changed{};  ///< since its last update, per kind
  std::vector<comm::BrokenMessage> broken;        ///< received by this rank

  std::string bytes() const;
  static FaultReport of(const std::string& bytes);
};

/// A fault and the ranks that may have caused it. Several, if the cause cannot be located.
struct Fault {
  std::vector<int> ranks;
  std::string what;
};

/// Returns the faults of memory and messages. `reports` are indexed by rank. Faults that a rank finds in its
/// own data explain differences on other ranks, so ranks are compared second.
std::vector<Fault> faults_in(const std::vector<FaultReport>& reports);

/// Returns the ranks with gradients that differ from the replay. The replay of a rank's micro-batch runs on
/// the rank `shift` before it (modulo the world size).
std::vector<int> differing(const std::vector<FaultReport>& reports, int shift);
/// Decides which of the two ranks is wrong, by a third replay on the rank `second` before. Returns both ranks
/// if all three results differ, or if `thirds` is empty.
std::vector<Fault> faults_of_replays(const std::vector<FaultReport>& reports, int shift,
                                     const std::vector<ops::Hash>& thirds, int second);

}  // namespace octet::train
