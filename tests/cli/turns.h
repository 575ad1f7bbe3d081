// Numbers of ranks for tables of wrong inputs: one rank, and sometimes also two.
#pragma once

#include <vector>

namespace octet::test {

/// Returns {alone} for a row of a table; for the first row and every third one after it, also two ranks.
/// Printing by a single rank does not depend on the row, and starting two ranks takes longest.
inline std::vector<int> ranks_in_turn(int alone) {
  static int rows = 0;
  return rows++ % 3 == 0 ? std::vector<int>{alone, 2} : std::vector<int>{alone};
}

}  // namespace octet::test
