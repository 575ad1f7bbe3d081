// Bits that tests invert, to see what becomes of them.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/comm/seals.h"
#include "octet/store/hashes.h"

namespace octet::train {

/// With OCTETRUN_FLIPS=RANK:STEP:KIND:DRAW[,…] a bit of this rank is inverted in that step, once. KIND is
/// parameters, masters, moments or frozen (what the rank holds, before or behind the step's replay, as DRAW
/// is even or odd), gradients (of a group, when it is given back) or messages (one that the rank receives).
class Flips {
 public:
  /// Reads the variable. Throws Error (usage) for a text of another form.
  explicit Flips(int rank);
  /// Before the replay of a step, and behind it: `late`.
  void strike(std::int64_t step, bool late, store::Hashes& hashes, comm::Seals* seals, Stream& compute);

 private:
  enum class Kind { parameters, masters, moments, frozen, gradients, messages };
  struct Flip {
    std::int64_t step = 0;
    Kind kind{};
    std::uint64_t draw = 0;
  };
  std::vector<Flip> flips_;  ///< of this rank, to come
};

}  // namespace octet::train
