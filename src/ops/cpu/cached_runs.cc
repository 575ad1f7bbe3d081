#include "cpu/cached_runs.h"

#include <algorithm>

#include "octet/base/error.h"

namespace octet::ops::cpu {

TokenRuns token_runs(const std::int32_t* slots, const std::int32_t* positions, std::int64_t tokens) {
  TokenRuns found;
  std::vector<std::int32_t> seen;
  for (std::int64_t t = 0; t < tokens; ++t) {
    check(slots[t] >= 0 && positions[t] >= 0, "delta rule: slots and positions must not be negative");
    if (t > 0 && slots[t] == slots[0] && positions[t] == positions[0]) {
      check(found.runs.front().count == 1, "delta rule: only a single token of a sequence may have copies");
      found.copies.push_back(t);
      continue;
    }
    const TokenRun last = found.runs.empty() ? TokenRun{} : found.runs.back();
    if (last.count > 0 && last.first + last.count == t && slots[t] == slots[t - 1] &&
        positions[t] == positions[t - 1] + 1) {
      ++found.runs.back().count;
      continue;
    }
    found.runs.push_back({.first = t, .count = 1});
    seen.push_back(slots[t]);
  }
  std::sort(seen.begin(), seen.end());
  check(std::adjacent_find(seen.begin(), seen.end()) == seen.end(),
        "delta rule: the tokens of a sequence must be adjacent, in order and without gaps");
  return found;
}

}  // namespace octet::ops::cpu
