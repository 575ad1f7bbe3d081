// Tokens of decoding with a state per sequence.
#pragma once

#include <cstdint>
#include <vector>

namespace octet::ops::cpu {

/// Adjacent tokens of a sequence.
struct TokenRun {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

struct TokenRuns {
  std::vector<TokenRun> runs;
  std::vector<std::int64_t> copies;  ///< tokens that are copies of token 0
};

/// Divides the tokens of a call by sequences, as described at CachedDeltaRuleArgs. Throws if the tokens of a
/// sequence are not adjacent and in order.
TokenRuns token_runs(const std::int32_t* slots, const std::int32_t* positions, std::int64_t tokens);

}  // namespace octet::ops::cpu
