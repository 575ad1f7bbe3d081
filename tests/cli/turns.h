// Tables of wrong inputs on one rank, and some of them on two.
#pragma once

#include <vector>

namespace octet::test {

/// `alone` for every row of a table, and two ranks as well for the first and every third one after it: that
/// one of several ranks speaks is no matter of the row, and to start two takes longer than all the rest.
inline std::vector<int> ranks_in_turn(int alone) {
  static int rows = 0;
  return rows++ % 3 == 0 ? std::vector<int>{alone, 2} : std::vector<int>{alone};
}

}  // namespace octet::test
