#include "faults/rollbacks.h"

#include <algorithm>
#include <utility>

namespace octet::train {

Back Rollbacks::take() {
  return std::exchange(requested_, Back::no);
}

bool Rollbacks::begin(std::int64_t completed) {
  ++count_;
  if (std::exchange(completed_, completed) != completed) in_a_row_ = 0;
  return ++in_a_row_ > kMost;
}

void Rollbacks::restore(std::int64_t count) {
  count_ = std::max(count_, count);
}

}  // namespace octet::train
