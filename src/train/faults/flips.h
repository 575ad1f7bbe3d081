// Inverts bits for tests of fault detection.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/comm/seals.h"
#include "octet/store/hashes.h"

namespace octet::train {

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

}  // namespace octet::train
