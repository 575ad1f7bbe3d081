// Tokenised sets for tests.
#pragma once

#include <cstdint>
#include <vector>

#include "octet/data/encoded.h"

namespace octet::test {

/// Documents of 1 to `longest` tokens, each known by its first one, every third token trained.
inline data::Encoded set_of(std::int64_t documents, std::int64_t longest) {
  data::Encoded set;
  for (std::int64_t d = 0; d < documents; ++d) {
    std::vector<std::int32_t> ids, labels;
    for (std::int64_t t = 0; t < 1 + d * 7919 % longest; ++t) {
      ids.push_back(static_cast<std::int32_t>(d * 100 + t));
      labels.push_back(t % 3 == 2 ? ids.back() : -100);
    }
    set.append(ids, labels, d);
  }
  return set;
}

}  // namespace octet::test
